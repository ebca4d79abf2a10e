foreach(name kept price probe)
  tutti_unit(model/test_${name} base schedule collectives model)
endforeach()
