"""Tandem in a Python program, without a server to run.

    from tandem import LLM

    with LLM("model.gguf", small="small.gguf") as llm:
        print(llm.generate("def fib(n):", max_new_tokens=64).text)

`LLM` starts a `tandem-server` of its own and stops it. For a server that runs already, use `tandem_client`.
"""

from tandem_client import Chunk, Completion, Message, TandemError

from .llm import LLM

__all__ = ["LLM", "Chunk", "Completion", "Message", "TandemError"]
