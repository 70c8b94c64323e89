// What a client with the TypeScript SDK does with the server, over stdio or HTTP.
//
// usage: node story.mjs stdio COMMAND... | node story.mjs http URL TOKEN
// The working directory is a folder that agents may work in. SDK names the folder of the SDK. Prints one line a step; the first
// thing that is not so ends it.

const sdk = async (path) => import(`${process.env.SDK}/dist/esm/${path}`);
const { Client } = await sdk('client/index.js');
const { StdioClientTransport } = await sdk('client/stdio.js');
const { StreamableHTTPClientTransport } = await sdk('client/streamableHttp.js');

const [way, ...rest] = process.argv.slice(2);
const cwd = process.cwd();
const transport =
  way === 'stdio'
    ? new StdioClientTransport({ command: rest[0], args: rest.slice(1), cwd, env: process.env })
    : new StreamableHTTPClientTransport(new URL(rest[0]), {
        requestInit: { headers: { Authorization: `Bearer ${rest[1]}` } },
      });

const holds = (isSo, what) => {
  if (!isSo) throw new Error(`not so: ${JSON.stringify(what)}`);
};

const client = new Client({ name: 'story', version: '1' });
await client.connect(transport);
console.log('connected to', client.getServerVersion().name);

const { tools } = await client.listTools();
const cc = tools.find((tool) => tool.name === 'call_cc');
holds(cc?.outputSchema && cc.annotations.openWorldHint, tools);
console.log('listed', tools.length, 'tools');

const call = (name, args, options) => client.callTool({ name, arguments: args }, undefined, options);

const told = [];
const prompt = '@rehearse say first\n@rehearse delay 600ms\n@rehearse answer done';
// The SDK checks the structured answer against the schema itself.
const result = await call('call_rehearsal', { prompt, cwd }, { onprogress: (progress) => told.push(progress.message) });
holds(!result.isError && result.structuredContent.output === 'done', result);
holds(told.includes('first'), told);
console.log('called, with progress');

const refused = await call('call_rehearsal', { prompt: 'x', timeout_ms: 0 });
holds(refused.isError && refused.content[0].text.includes('timeout_ms'), refused);
const failed = await call('call_rehearsal', { prompt: '@rehearse fail auth', cwd });
holds(failed.isError && failed.structuredContent.error.kind === 'auth', failed);
console.log('refused and failed');

const job = (await call('call_rehearsal', { prompt: 'Hello', cwd, fire_and_forget: true })).structuredContent.job_id;
const waited = (await call('call_wait', { job_ids: [job] })).structuredContent;
holds(waited.jobs[0].output === 'You said: Hello', waited);
const resource = await client.readResource({ uri: `switchboard://jobs/${job}` });
holds(resource.contents[0].text.includes('You said: Hello'), resource);
console.log('waited and read');

// A client that gives up says so, and the job is cancelled.
const hang = { prompt: '@rehearse say on it\n@rehearse hang', cwd, task_name: 'given up' };
const outcome = await call('call_rehearsal', hang, { timeout: 2000 }).catch((error) => error);
holds(outcome instanceof Error, outcome);
const { jobs } = (await call('call_jobs', { limit: 1 })).structuredContent;
holds(jobs[0].task_name === 'given up', jobs);
const ended = (await call('call_wait', { job_ids: [jobs[0].job_id] })).structuredContent;
holds(ended.jobs[0].status === 'cancelled', ended);
console.log('gave up');

await client.close();
console.log('the end');
