"""The four arrays that a batch has on each rank: the tokens of its experts, their outputs, and the gradients of
both."""
TOKENS, OUTPUTS, GRAD_OUTPUTS, GRAD_TOKENS = range(4)
