"""Calls the agent so many times through claude-agent-sdk and prints how long each took.

usage: query.py AGENT TIMES PROMPT
One JSON object on stdout: the times in milliseconds, the resident memory in kB, and the last answer.
"""

import asyncio
import json
import sys
import time

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query


async def main() -> None:
    agent, times, prompt = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    options = ClaudeAgentOptions(cli_path=agent)
    taken, answer = [], None
    for _ in range(times):
        began = time.perf_counter()
        async for message in query(prompt=prompt, options=options):
            if isinstance(message, ResultMessage):
                answer = message.result
        taken.append((time.perf_counter() - began) * 1000)
    with open("/proc/self/status", encoding="utf-8") as status:
        memory = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    json.dump({"ms": taken, "peak_kb": memory, "answer": answer}, sys.stdout)


asyncio.run(main())
