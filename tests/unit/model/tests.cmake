foreach(name kept price probe)
  tutti_unit(model/test_${name} model)
endforeach()
