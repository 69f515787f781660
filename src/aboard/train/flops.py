"""What one token costs: the figure that utilisation (MFU) is measured by."""

from transformers import PreTrainedModel

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


def flops_per_token(model: PreTrainedModel, length: int) -> float:
    """Forward and backward: six per weight that a token meets, and attention over half of the positions before it.

    Looking up an embedding is no multiplication, but a head that is tied to it is one (https://arxiv.org/abs/2204.02311,
    appendix B, which counts attention as if it were not causal).
    """
    return 6.0 * _met(model) + sum(
        6.0 * _width(model) * min(length, window) for window in _windows(model.config.get_text_config(), length)
    )


def _met(model: PreTrainedModel) -> float:
    config = model.config.get_text_config()
    experts = next((getattr(config, name) for name in EXPERTS if getattr(config, name, None)), None)
    share = getattr(config, "num_experts_per_tok", None)
    part = share / experts if experts and share else 1.0
    lookup = {id(each) for each in model.get_input_embeddings().parameters()}
    head = model.get_output_embeddings()
    multiplied = {id(each) for each in head.parameters()} if head is not None else set()
    return sum(
        each.numel() * (part if ".experts." in name else 1.0)
        for name, each in model.named_parameters()
        if id(each) not in lookup - multiplied
    )


def _width(model: PreTrainedModel) -> int:
    config = model.config.get_text_config()
    heads = int(getattr(config, "num_attention_heads", 0))
    size = getattr(config, "head_dim", None) or int(config.hidden_size) // max(heads, 1)
    return heads * int(size)


def _windows(config: object, length: int) -> list[int]:
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None) or length
    if kinds:
        return [window if kind == "sliding_attention" else length for kind in kinds]
    return [window] * int(getattr(config, "num_hidden_layers", 0))
