tutti_unit(groups/test_grid all)
