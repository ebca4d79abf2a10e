foreach(name kept cost probe)
  tutti_unit(model/test_${name} model)
endforeach()
