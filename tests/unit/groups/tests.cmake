tutti_unit(groups/test_grid all)
tutti_unit(groups/test_pipeline all)
tutti_unit(groups/test_experts all)
