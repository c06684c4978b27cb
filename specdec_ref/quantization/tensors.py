"""Which tensors a Llama-family checkpoint holds, by Hugging Face's names, without loading any."""

from __future__ import annotations

from specdec_ref.model import ModelConfig

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"
HEAD_IDS = "specdec.head_ids"
LAYERS = "model.layers."


def layer_prefix(index: int) -> str:
    """What the names of a layer's tensors begin with."""
    return f"{LAYERS}{index}."


def layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The tensors of one layer: name without `layer_prefix` -> shape."""
    c = config
    d, f = c.hidden_size, c.intermediate_size
    width, kv_width = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (d,),
        "self_attn.q_proj.weight": (width, d),
        "self_attn.k_proj.weight": (kv_width, d),
        "self_attn.v_proj.weight": (kv_width, d),
        "self_attn.o_proj.weight": (d, width),
        "post_attention_layernorm.weight": (d,),
        "mlp.gate_proj.weight": (f, d),
        "mlp.up_proj.weight": (f, d),
        "mlp.down_proj.weight": (d, f),
    }
    if c.qkv_bias:
        shapes |= {
            f"self_attn.{n}_proj.bias": (w,) for n, w in (("q", width), ("k", kv_width), ("v", kv_width))
        }
    if c.o_bias:
        shapes["self_attn.o_proj.bias"] = (d,)
    if c.mlp_bias:
        shapes |= {"mlp.gate_proj.bias": (f,), "mlp.up_proj.bias": (f,), "mlp.down_proj.bias": (d,)}
    if c.qk_norm:
        shapes |= {"self_attn.q_norm.weight": (c.head_dim,), "self_attn.k_norm.weight": (c.head_dim,)}
    return shapes


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that `Decoder.load_weights` asks for: name -> shape, in the order they are used."""
    c = config
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (c.vocab_size, c.hidden_size)}
    for index in range(c.num_hidden_layers):
        shapes |= {layer_prefix(index) + name: shape for name, shape in layer_shapes(c).items()}
    shapes[FINAL_NORM] = (c.hidden_size,)
    if c.head_rows is not None:
        shapes[HEAD_IDS] = (c.head_rows,)
    if not c.tie_word_embeddings:
        shapes[HEAD] = (c.head_rows or c.vocab_size, c.hidden_size)
    return shapes
