"""The doctor: is every layer below the engine there, from the PCI bus up to PyTorch, and does the CPU have room?

system.py                     the only part that touches the machine: run a command, read a file
probe.py                      which commands and files; their texts become `Facts`
facts.py                      what is known, as plain values; None wherever it could not be read
parse_gpu.py, parse_host.py   text -> values, for any text at all
finding.py                    Finding, Check, and the rule that a layer waits for those that it stands on
gpu_stack.py, gpu_health.py, torch_build.py, host.py    the checks: Facts -> Finding
diagnosis.py                  all the checks, in the order in which a box is brought up
report.py                     findings as lines for a terminal, or as JSON
"""
