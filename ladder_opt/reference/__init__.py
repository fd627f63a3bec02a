"""A reference of batched decode attention on the CPU, padded and compiled as on Spyre; needs torch.

It is there to be compared with, not to be fast: the same ladders, the same variants and the same warm-up as
on the device, on any machine. `ladder-opt verify` runs it without a server, `ladder-opt measure` times it,
and vLLM serves with it where asked to (`plugin`). Of the rest of the package, `measurement`, the command
`verify` and the public names alone import it.
"""
