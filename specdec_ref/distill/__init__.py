"""Distilling a draft from a target, without a corpus: the target writes the data, the draft learns its distributions.

Four stages, each resumable after a kill at any moment and each the same command on one CPU, one GPU or many:
`data` (the target writes shards of token ids), `train` (one or several drafts learn from the target's full logits),
`eval` (acceptance on prompts that training never saw), `export` (a model folder the kit's loader reads).
"""
