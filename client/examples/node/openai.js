#!/usr/bin/env node
// The same with OpenAI's client, against a server with --openai:
//
//     node openai.js --server 127.0.0.1:8000 --model code --prompt 'def fib(n):' --method bild
'use strict';
const { parseArgs } = require('node:util');
const OpenAI = require('openai');

const { values: args } = parseArgs({
  options: {
    server: { type: 'string', default: '127.0.0.1:8000' },
    model: { type: 'string' },
    prompt: { type: 'string' },
    'max-tokens': { type: 'string', default: '64' },
    seed: { type: 'string' }, // a string: it has 64 bits
    method: { type: 'string' },
    fields: { type: 'string', default: '{}' }, // further ones, as JSON
    list: { type: 'boolean' },
    whole: { type: 'boolean' },
  },
});

async function main() {
  const client = new OpenAI({
    baseURL: `http://${args.server}/v1`,
    apiKey: process.env.TANDEM_TOKEN ?? 'none',
    maxRetries: 0,
  });
  if (args.list) {
    for await (const model of client.models.list()) console.log(model.id);
    return;
  }
  const request = {
    model: args.model,
    prompt: args.prompt,
    max_tokens: Number(args['max-tokens']),
    ...(args.seed && { seed: args.seed }),
    ...(args.method && { tandem: { method: args.method } }),
    ...JSON.parse(args.fields),
  };
  if (args.whole) {
    const answer = await client.completions.create(request);
    process.stdout.write(answer.choices[0].text);
    console.error(`\n[${answer.tandem.method}: ${answer.usage.completion_tokens} tokens]`);
    return;
  }
  const stream = await client.completions.create({
    ...request,
    stream: true,
    stream_options: { include_usage: true },
  });
  for await (const chunk of stream) {
    process.stdout.write(chunk.choices[0]?.text ?? '');
    if (chunk.usage) console.error(`\n[${chunk.usage.completion_tokens} tokens]`);
  }
}

main().catch((error) => {
  console.error(`${error.status} ${error.code}: ${error.error?.message ?? error.message}`);
  process.exitCode = 1;
});
