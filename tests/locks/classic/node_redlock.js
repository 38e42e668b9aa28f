// One call of node-redlock: `lock PORTS NAME`, which prints the lock's value or `refused`, or
// `unlock PORTS NAME VALUE`.
const Redis = require('ioredis');
const Redlock = require('redlock');

const [verb, ports, name, value] = process.argv.slice(2);
const servers = ports.split(',').map((port) => new Redis(Number(port), '127.0.0.1'));
const client = new Redlock(servers, { retryCount: 0 });

async function call() {
  if (verb === 'unlock') {
    await client.unlock(new Redlock.Lock(client, [name], value, Date.now() + 20000));
    return;
  }
  try {
    console.log((await client.lock(name, 20000)).value);
  } catch (error) {
    if (error.name !== 'LockError') throw error;
    console.log('refused');
  }
}

call().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
