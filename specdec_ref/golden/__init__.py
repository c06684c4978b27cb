"""Golden vectors: one set of answers that Python, C++, Swift and Kotlin are all tested against.

`python -m specdec_ref.golden` makes `assets/golden`; the README there explains the files.
"""
