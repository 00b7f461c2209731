"""The passes in C++, for the CPU.

`decode.cpp` is a decode step: `matvec.h` multiplies a matrix in one of six formats with a vector, `matmul.h` with a few
vectors. `attention.cpp` attends over the cache: by `attention.h`, or by `tile_attention.h` on processors with tiles
(`tiles.h`).
`prompt.cpp` is the pass of a prompt, in strips of sixteen tokens (`strips.h`): in tiles of bfloat16 (`in_tiles.h`) or
in vectors of float32 (`in_floats.h`). `rows.cpp` has what lies between two of PyTorch's products, where these are
faster. `crew.h` shares the work among threads, `vectors.h` computes with eight or sixteen numbers at a time.
"""
