// Calls the agent so many times through @anthropic-ai/claude-agent-sdk and prints how long each took.
//
// usage: query.mjs AGENT TIMES PROMPT, with SDK_FOLDER naming the folder in which npm has installed the SDK
// One JSON object on stdout: the times in milliseconds, the peak of the resident memory in kB, and the last answer.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const sdk = `${process.env.SDK_FOLDER}/node_modules/@anthropic-ai/claude-agent-sdk/sdk.mjs`;
const { query } = await import(pathToFileURL(sdk));

const [agent, times, prompt] = process.argv.slice(2);
const ms = [];
let answer = null;
for (let number = 0; number < Number(times); number += 1) {
  const began = performance.now();
  for await (const message of query({ prompt, options: { pathToClaudeCodeExecutable: agent } })) {
    if (message.type === "result") answer = message.result;
  }
  ms.push(performance.now() - began);
}
const peak = Number(/VmHWM:\s+(\d+)/.exec(readFileSync("/proc/self/status", "utf8"))[1]);
process.stdout.write(JSON.stringify({ ms, peak_kb: peak, answer }));
