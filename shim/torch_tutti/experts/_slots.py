"""The arrays of a batch: what experts take and make, and the gradients of both."""
TOKENS, OUTPUTS, GRAD_OUTPUTS, GRAD_TOKENS = range(4)
