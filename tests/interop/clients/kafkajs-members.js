// Two members of a group that commit what they read, with kafkajs. Arguments: directory of kafkajs, bootstrap server, topic, group.
//
// Prints "assigned MEMBER", "committed MEMBER", "broken MEMBER TEXT" and "error MEMBER TEXT".

const [directory, address, topic, groupId] = process.argv.slice(2);
const { Kafka, logLevel } = require(directory);
const kafka = new Kafka({ brokers: [address], logLevel: logLevel.NOTHING, retry: { initialRetryTime: 20, maxRetryTime: 100, retries: 100 } });

// An error with a code comes from the broker. A broken connection is what the test is about.
function report(member, error) {
    const refusal = [error, error.cause, error.originalError].find((cause) => cause?.code > 0);
    console.log(refusal ? "error" : "broken", member, `${error.name} ${error.message}`);
}

async function run(member) {
    const consumer = kafka.consumer({ groupId, heartbeatInterval: 100, maxWaitTimeInMs: 100 });
    consumer.on(consumer.events.GROUP_JOIN, () => console.log("assigned", member));
    consumer.on(consumer.events.CRASH, ({ payload }) => report(member, payload.error));
    await consumer.connect();
    await consumer.subscribe({ topic, fromBeginning: true });
    await consumer.run({
        autoCommit: false,
        eachMessage: async ({ partition, message }) => {
            await consumer.commitOffsets([{ topic, partition, offset: `${BigInt(message.offset) + 1n}` }]);
            console.log("committed", member);
        },
    });
}

for (const member of [0, 1]) run(member).catch((error) => report(member, error));
