"""What a client with the Python SDK does with the server, over stdio or HTTP.

usage: story.py stdio COMMAND... | story.py http URL TOKEN
The working directory is a folder that agents may work in. Prints one line a step; the first thing that is not so ends it.
"""

import asyncio
import os
import sys

from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client


def server(arguments):
    if arguments[0] == "stdio":
        return StdioServerParameters(command=arguments[1], args=arguments[2:], cwd=os.getcwd(), env=dict(os.environ))
    http = create_mcp_http_client(headers={"Authorization": f"Bearer {arguments[2]}"})
    return streamable_http_client(arguments[1], http_client=http)


def holds(is_so, what):
    if not is_so:
        raise SystemExit(f"not so: {what}")


async def story(mode):
    async with Client(server(sys.argv[1:]), mode=mode) as client:
        print("connected, protocol", client.protocol_version)

        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        holds("call_cc" in tools and tools["call_cc"].output_schema, tools.keys())
        print("listed", len(tools), "tools")

        told = []

        async def progress(number, total, message):
            told.append(message)

        prompt = "@rehearse say first\n@rehearse delay 600ms\n@rehearse answer done"
        arguments = {"prompt": prompt, "cwd": os.getcwd()}
        # The SDK checks the structured answer against the schema itself.
        result = await client.call_tool("call_rehearsal", arguments, progress_callback=progress)
        holds(not result.is_error and result.structured_content["output"] == "done", result)
        holds("first" in told, told)
        print("called, with progress")

        result = await client.call_tool("call_rehearsal", {"prompt": "x", "timeout_ms": 0})
        holds(result.is_error and "timeout_ms" in result.content[0].text, result)
        result = await client.call_tool("call_rehearsal", {"prompt": "@rehearse fail auth", "cwd": os.getcwd()})
        holds(result.is_error and result.structured_content["error"]["kind"] == "auth", result)
        print("refused and failed")

        arguments = {"prompt": "Hello", "cwd": os.getcwd(), "fire_and_forget": True}
        job = (await client.call_tool("call_rehearsal", arguments)).structured_content["job_id"]
        waited = (await client.call_tool("call_wait", {"job_ids": [job]})).structured_content
        holds(waited["jobs"][0]["output"] == "You said: Hello", waited)
        resource = await client.read_resource(f"switchboard://jobs/{job}")
        holds("You said: Hello" in resource.contents[0].text, resource)
        holds(len((await client.list_resources()).resources) >= 3, "resources")
        print("waited and read")


for mode in ("auto", "legacy"):
    asyncio.run(story(mode))
print("the end")
