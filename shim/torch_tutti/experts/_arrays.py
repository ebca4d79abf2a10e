"""The four arrays of a batch: the experts' tokens, their outputs, and the gradients of both."""
TOKENS, OUTPUTS, GRAD_OUTPUTS, GRAD_TOKENS = range(4)
