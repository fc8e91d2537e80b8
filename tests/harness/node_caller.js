// Calls of grpc-js, asked for in lines of JSON on stdin and answered in lines on stdout; messages are base64.
// Requests and answers pass through protobufjs: what it does not understand of the contract, or writes otherwise, shows.
'use strict';
const fs = require('fs');
const path = require('path');
const readline = require('readline');

const [modules, proto, address, root, key, chain] = process.argv.slice(2);
const grpc = require(path.join(modules, '@grpc/grpc-js'));
const loader = require(path.join(modules, '@grpc/proto-loader'));

const files = ['federation', 'observer'].map((name) => `fedrep/wire/v1/${name}.proto`);
const known = loader.loadSync(files, { includeDirs: [proto], longs: String, oneofs: true });
const loaded = grpc.loadPackageDefinition(known).fedrep.wire.v1;
const secured = grpc.credentials.createSsl(...[root, key, chain].map((file) => fs.readFileSync(file)));
const clients = {};
const open = {};

function say(message) {
  process.stdout.write(`${JSON.stringify(message)}\n`);
}

function begin({ id, service, method }) {
  clients[service] ??= new loaded[service](address, secured);
  const client = clients[service];
  const kind = loaded[service].service[method];
  const read = (text) => kind.requestDeserialize(Buffer.from(text, 'base64'));
  const answer = (message) => say({ id, message: kind.responseSerialize(message).toString('base64') });
  const refused = (error) => {
    const details = error.metadata?.get('grpc-status-details-bin')[0];
    say({ id, code: error.code, details: error.details, status: details ? details.toString('base64') : '' });
  };
  const once = (error, message) => {
    if (error) return refused(error);
    answer(message);
    say({ id, last: true });
  };
  const listen = (call) => {
    call.on('data', answer);
    call.on('error', refused);
    call.on('end', () => say({ id, last: true }));
    return call;
  };
  if (kind.requestStream) {
    const call = kind.responseStream ? listen(client[method]()) : client[method](once);
    return { take: (text) => call.write(read(text)), end: () => call.end() };
  }
  const whole = (text) => (kind.responseStream ? listen(client[method](read(text))) : client[method](read(text), once));
  return { take: whole, end: () => {} };
}

readline.createInterface({ input: process.stdin }).on('line', (line) => {
  const asked = JSON.parse(line);
  open[asked.id] ??= begin(asked);
  if (asked.message !== undefined) open[asked.id].take(asked.message);
  if (asked.last) open[asked.id].end();
}).on('close', () => process.exit(0));
