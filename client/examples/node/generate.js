#!/usr/bin/env node
// Streams a completion from a Tandem server:
//
//     node generate.js --model code --prompt 'def fib(n):' --max-new-tokens 64
//
// Needs the packages @grpc/grpc-js and @grpc/proto-loader (README.md).
'use strict';
const path = require('node:path');
const { parseArgs } = require('node:util');
const grpc = require('@grpc/grpc-js');
const protoLoader = require('@grpc/proto-loader');

const PROTO = path.resolve(__dirname, '../../../proto');

// keepCase: without it fields are called maxNewTokens, and one that is written max_new_tokens is
// dropped without a word. longs: a seed has 64 bits, and JavaScript's numbers have 53.
const loaded = protoLoader.loadSync('tandem/v1/generation.proto', {
  includeDirs: [PROTO],
  keepCase: true,
  longs: String,
  enums: String,
  oneofs: true,
});
const { Generation } = grpc.loadPackageDefinition(loaded).tandem.v1;

// The loader drops fields that it does not know; this says so. Nested messages are checked, too.
function checked(fields, type, where = '') {
  for (const [name, value] of Object.entries(fields)) {
    const field = type.field.find((f) => f.name === name);
    if (!field) throw new Error(`${where}${name}: no such field of ${type.name}`);
    const inner = field.type === 'TYPE_MESSAGE' && loaded[`tandem.v1.${field.typeName}`];
    const values = Array.isArray(value) ? value : [value];
    if (inner) values.forEach((v) => checked(v, inner.type, `${where}${name}.`));
  }
  return fields;
}

const { values: args } = parseArgs({
  options: {
    server: { type: 'string', default: process.env.TANDEM_SERVER ?? '127.0.0.1:50051' },
    model: { type: 'string' },
    prompt: { type: 'string' },
    'max-new-tokens': { type: 'string', default: '64' },
    fields: { type: 'string', default: '{}' }, // further ones, as JSON
  },
});

function main() {
  const request = checked(
    {
      model: args.model,
      text: args.prompt,
      max_new_tokens: Number(args['max-new-tokens']),
      ...JSON.parse(args.fields),
    },
    loaded['tandem.v1.GenerateRequest'].type,
  );
  const client = new Generation(args.server, grpc.credentials.createInsecure());
  const call = client.Generate(request);
  call.on('data', (event) => {
    if (event.event === 'chunk') process.stdout.write(event.chunk.text);
    if (event.event === 'finished') {
      const { finish_reason: reason, seed, usage } = event.finished;
      const words = reason.replace('FINISH_REASON_', '');
      console.error(`\n[${words}: ${usage.completion_tokens} tokens, seed ${seed}]`);
    }
  });
  call.on('error', (error) => {
    console.error(`${grpc.status[error.code]}: ${error.details}`);
    process.exitCode = 1;
  });
  call.on('end', () => client.close());
}

try {
  main();
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}
