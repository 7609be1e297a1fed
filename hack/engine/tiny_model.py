"""Write a tiny Llama with a byte-level tokenizer: one character is one token. Random weights: `--load-format dummy`.

usage: tiny_model.py FOLDER
"""

import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedTokenizerFast

folder = sys.argv[1]
vocabulary = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
for special in ("<s>", "</s>", "<pad>"):
    vocabulary[special] = len(vocabulary)
tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
fast.chat_template = "{% for m in messages %}{{m['content']}}{% endfor %}"
fast.save_pretrained(folder)
LlamaConfig(
    vocab_size=320,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=4096,
    bos_token_id=256,
    eos_token_id=257,
    torch_dtype="bfloat16",
    architectures=["LlamaForCausalLM"],
).save_pretrained(folder)
