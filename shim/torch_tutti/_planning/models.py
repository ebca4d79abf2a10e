"""Models as numbers: published sizes, and the parameters that follow from them."""
from __future__ import annotations

from typing import NamedTuple


class Experts(NamedTuple):
    """The experts of a model. count: in a layer; chosen: those of each token; copies: the most copies of a token that
    are sent; layers: those with experts; parameters: of one expert in one layer."""
    count: int
    chosen: int
    copies: int
    layers: int
    parameters: int


class Model(NamedTuple):
    """A transformer. parameters: all; own: those outside the layers. layers, width, heads, inner: for activations;
    inner: bytes that the second half of a layer keeps for each number of its input, with 16 bits for a number.
    key_heads: heads of keys and values; 0: as many as heads. tied: the output head is the embedding."""
    parameters: int
    own: int
    layers: int
    width: int
    heads: int
    inner: float = 19.0
    key_heads: int = 0
    tied: bool = False
    experts: Experts | None = None

    @property
    def routed(self) -> int:
        """Parameters of all experts among which tokens are routed."""
        return self.experts.count * self.experts.layers * self.experts.parameters if self.experts else 0

    @property
    def active(self) -> int:
        """Parameters that each token is multiplied with: all but the experts that it is not sent to."""
        return self.parameters - (self.routed * (self.experts.count - self.experts.chosen) // self.experts.count
                                  if self.experts else 0)


def _gpt(layers: int, width: int, heads: int, vocabulary: int, positions: int) -> Model:
    """Returns a GPT: layers with an inner width of 4 times the width, and learned positions."""
    own = (vocabulary + positions + 2) * width          # embeddings, one of which is the head too; the last norm
    return Model(layers * (12 * width + 13) * width + own, own, layers, width, heads, tied=True)


def _kept_by_experts(used: int, width: int, inner: int) -> float:
    """Returns Model.inner of a layer with experts: the input, and three products of each of the `used` experts of a
    token."""
    return used * (2 + 6 * inner / width)


def _llama(layers: int, width: int, heads: int, inner: int, vocabulary: int = 32000, key_heads: int | None = None,
           experts: int = 1, chosen: int = 1) -> Model:
    """Returns a Llama: three matrices in the second half of a layer; with experts > 1 that many experts, `chosen` of
    them for each token."""
    key_width = width // heads * (key_heads or heads)
    expert_parameters = 3 * width * inner
    layer_parameters = (2 * width * (width + key_width) + experts * expert_parameters + (experts > 1) * experts * width
                        + 2 * width)
    own = (2 * vocabulary + 1) * width
    model = Model(layers * layer_parameters + own, own, layers, width, heads, key_heads=key_heads or 0)
    if experts == 1:
        return model
    return model._replace(inner=_kept_by_experts(chosen, width, inner),
                          experts=Experts(experts, chosen, chosen, layers, expert_parameters))


def _deepseek_v2() -> Model:
    """Returns DeepSeek-V2: latent attention; 160 routed experts and 2 shared ones in each layer but the first. A token
    goes to 6 of the routed experts, on at most 3 devices."""
    layers, width, heads, query, latent, rotary, head = 60, 5120, 128, 1536, 512, 64, 128
    attention = (width * query + query + query * heads * (head + rotary) + width * (latent + rotary) + latent
                 + latent * heads * 2 * head + heads * head * width + 2 * width)
    expert_parameters = 3 * width * 1536
    experts = 160 * width + (160 + 2) * expert_parameters
    own = (2 * 102400 + 1) * width
    return Model(layers * attention + (layers - 1) * experts + 3 * width * 12288 + own, own, layers, width, heads,
                 inner=_kept_by_experts(6 + 2, width, 1536), experts=Experts(160, 6, 3, layers - 1, expert_parameters))


# Sizes. gpt3: Brown et al., Language Models are Few-Shot Learners (2020), table 2.1. llama: Touvron et al., LLaMA
# (2023), table 2; inner widths are of the models' own files. llama2: Touvron et al., Llama 2 (2023), table 1 and
# section 2.2. mixtral: Jiang et al., Mixtral of Experts (2024), table 1. deepseek-v2: DeepSeek-AI, DeepSeek-V2 (2024),
# section 3.1.2.
MODELS = {
    "gpt3-175b": _gpt(96, 12288, 96, 50257, 2048),
    "llama-7b": _llama(32, 4096, 32, 11008),
    "llama-13b": _llama(40, 5120, 40, 13824),
    "llama-33b": _llama(60, 6656, 52, 17920),
    "llama-65b": _llama(80, 8192, 64, 22016),
    "llama2-70b": _llama(80, 8192, 64, 28672, key_heads=8),
    "mixtral-8x7b": _llama(32, 4096, 32, 14336, key_heads=8, experts=8, chosen=2),
    "deepseek-v2": _deepseek_v2(),
}
ALIASES = {"llama-70b": "llama2-70b"}
