#!/usr/bin/env node
// A loop of tool calls with OpenAI's client, against a server with --openai:
//
//     node tools.js --server 127.0.0.1:8000 --model qwen --prompt 'How warm is it in Paris?'
'use strict';
const { parseArgs } = require('node:util');
const OpenAI = require('openai');

const { values: args } = parseArgs({
  options: {
    server: { type: 'string', default: '127.0.0.1:8000' },
    model: { type: 'string' },
    prompt: { type: 'string' },
    whole: { type: 'boolean' }, // no streams
  },
});

const tools = [
  {
    type: 'function',
    function: {
      name: 'get_weather',
      description: 'The temperature in a city, in degrees Celsius.',
      parameters: {
        type: 'object',
        properties: { city: { type: 'string' } },
        required: ['city'],
      },
    },
  },
];
const implementations = { get_weather: ({ city }) => JSON.stringify({ city, celsius: 18 }) };

async function main() {
  const client = new OpenAI({
    baseURL: `http://${args.server}/v1`,
    apiKey: process.env.TANDEM_TOKEN ?? 'none',
    maxRetries: 0,
  });
  const messages = [{ role: 'user', content: args.prompt }];
  for (let turn = 0; turn < 8; ++turn) {
    const request = { model: args.model, messages, tools };
    const answer = args.whole
      ? await client.chat.completions.create(request)
      : await client.chat.completions.stream(request).finalChatCompletion();
    const { message, finish_reason: reason } = answer.choices[0];
    if (reason !== 'tool_calls') {
      console.log(message.content);
      return;
    }
    messages.push(message);
    for (const call of message.tool_calls) {
      const { name, arguments: given } = call.function;
      console.error(`${name} ${given}`);
      const content = implementations[name]?.(JSON.parse(given)) ?? `no tool ${name}`;
      messages.push({ role: 'tool', tool_call_id: call.id, content });
    }
  }
}

main().catch((error) => {
  console.error(`${error.status} ${error.code}: ${error.error?.message ?? error.message}`);
  process.exitCode = 1;
});
