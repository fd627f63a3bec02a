"""Timing the batched decode kernel on this machine: rows of measurements that `calibrate` fits; needs torch.

A measurement pads batches with the server's own builder, compiles and runs the kernels of `reference`, and
chooses its points by the fit of `calibration`. Only the command line imports it, and torch is imported by
`kernel_bench` alone, once there is something to time.
"""
