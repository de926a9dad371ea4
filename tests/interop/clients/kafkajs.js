// Run kafkajs against a cluster, and print what each check found as one line of JSON: {"check": name, "found": value}.
//
//     node kafkajs.js PACKAGE '{"brokers": ["HOST:PORT"], ...}' CHECK...
//
// PACKAGE is the directory of kafkajs; the JSON is the configuration of the client. An error is {"error": its type}. Values
// that differ between any two clusters, such as ids and addresses, are left out. The exit code is 0 unless a check hangs.

const [directory, settings, ...names] = process.argv.slice(2);
const { AclOperationTypes, AclPermissionTypes, AclResourceTypes, CompressionTypes, ConfigResourceTypes, Kafka, ResourcePatternTypes, logLevel } = require(directory);
const kafka = new Kafka({ clientId: "kafkajs", logLevel: logLevel.NOTHING, ...JSON.parse(settings) });
const admin = kafka.admin();
const CHECK_MS = 30_000;

async function attempt(work) {
    try {
        return (await work) ?? null;
    } catch (error) {
        const cause = error.errors?.[0] ?? error.cause ?? error;
        return { error: cause.type ?? cause.name };
    }
}

// Kafka's broker may hear of a topic after the response of the controller.
async function onceKnown(ask) {
    for (;;) {
        try {
            return await ask();
        } catch (error) {
            if (error.type !== "UNKNOWN_TOPIC_OR_PARTITION") throw error;
            await new Promise((resolve) => setTimeout(resolve, 20));
        }
    }
}

async function until(condition) {
    while (!condition()) await new Promise((resolve) => setTimeout(resolve, 20));
}

const sorted = (items) => [...items].sort();
const create = (topic, numPartitions) => admin.createTopics({ topics: [{ topic, numPartitions }] });
const values = (count, prefix) => Array.from({ length: count }, (_, index) => ({ key: `${index}`, value: `${prefix}${index}` }));

async function produce(topic, messages, options = {}, send = {}) {
    const producer = kafka.producer(options);
    await producer.connect();
    const found = await producer.send({ topic, messages, ...send });
    if (send.acks === 0) await producer.send({ topic, messages: values(1, "after ") }); // nobody says when the others are there
    await producer.disconnect();
    return found.map(({ partition, errorCode, baseOffset }) => [partition, errorCode, baseOffset]);
}

// Read until there are as many records; return [partition, offset, key, value, header] of each, in order.
async function read(topic, groupId, count) {
    const consumer = kafka.consumer({ groupId, maxWaitTimeInMs: 50 });
    const records = [];
    await consumer.connect();
    await consumer.subscribe({ topic, fromBeginning: true });
    await consumer.run({
        eachMessage: async ({ partition, message: { offset, key, value, headers } }) => {
            records.push([partition, offset, `${key}`, `${value}`, headers.h ? `${headers.h}` : ""]);
        },
    });
    await until(() => records.length >= count);
    await consumer.disconnect();
    return sorted(records.map((record) => record.join(" ")));
}

async function committedOffsets(groupId, topic, options = {}) {
    const [{ partitions }] = await admin.fetchOffsets({ groupId, topics: [topic], ...options });
    return sorted(partitions.map(({ partition, offset }) => [partition, offset]));
}

const checks = {
    async topics() {
        const topic = "js-topics";
        const first = await create(topic, 2);
        const again = await create(topic, 2);
        const refused = [
            await attempt(create("bad name", 1)),
            await attempt(admin.createTopics({ topics: [{ topic: "js-refused", configEntries: [{ name: "retention.ms", value: "x" }] }] })),
        ];
        await admin.createPartitions({ topicPartitions: [{ topic, count: 4 }] });
        const fewer = await attempt(admin.createPartitions({ topicPartitions: [{ topic, count: 1 }] }));
        const listed = (await admin.listTopics()).filter((name) => name.startsWith("js-topics"));
        const metadata = (await admin.fetchTopicMetadata({ topics: [topic] })).topics;
        const partitions = metadata[0].partitions.map(({ partitionErrorCode, partitionId, leader, replicas, isr }) => [partitionErrorCode, partitionId, leader, replicas, isr]);
        const missing = await attempt(admin.fetchTopicMetadata({ topics: ["js none"] }));
        await admin.deleteTopics({ topics: [topic] });
        return { first, again, refused, fewer, listed, partitions: sorted(partitions), missing };
    },

    async configs() {
        const topic = "js-configs";
        await onceKnown(() => create(topic, 1));
        const named = { type: ConfigResourceTypes.TOPIC, name: topic };
        const describe = async () => {
            const { resources } = await admin.describeConfigs({ includeSynonyms: true, resources: [{ ...named, configNames: ["cleanup.policy", "retention.ms"] }] });
            return sorted(resources[0].configEntries.map(({ configName, configValue, readOnly, configSource }) => [configName, configValue, readOnly, configSource].join(" ")));
        };
        const before = await onceKnown(describe);
        const altered = await admin.alterConfigs({ validateOnly: false, resources: [{ ...named, configEntries: [{ name: "retention.ms", value: "5000" }] }] });
        const refused = await attempt(admin.alterConfigs({ validateOnly: false, resources: [{ ...named, configEntries: [{ name: "retention.ms", value: "soon" }] }] }));
        const missing = await attempt(admin.describeConfigs({ includeSynonyms: false, resources: [{ type: ConfigResourceTypes.TOPIC, name: "js-none" }] }));
        const broker = await admin.describeConfigs({ includeSynonyms: false, resources: [{ type: ConfigResourceTypes.BROKER, name: "1", configNames: ["node.id"] }] });
        return { before, code: altered.resources[0].errorCode, after: await describe(), refused, missing, broker: broker.resources[0].configEntries.map(({ configValue }) => configValue) };
    },

    async cluster() {
        const { brokers, controller } = await admin.describeCluster();
        return { nodes: brokers.map(({ nodeId }) => nodeId), controller };
    },

    async produce() {
        const topic = "js-produce";
        await create(topic, 1);
        const plain = await produce(topic, [{ key: "a", value: "b", headers: { h: "x" } }, { key: null, value: null }]);
        const gzip = await produce(topic, values(50, "gzip "), {}, { compression: CompressionTypes.GZIP });
        const idempotent = await produce(topic, values(20, "once "), { idempotent: true, maxInFlightRequests: 1 });
        const zipped = await produce(topic, values(20, "both "), { idempotent: true, maxInFlightRequests: 1 }, { compression: CompressionTypes.GZIP });
        const leader = await produce(topic, values(3, "one "), {}, { acks: 1 });
        const none = await attempt(produce(topic, values(3, "none "), {}, { acks: 0 }));
        const refused = await attempt(produce("js none", values(1, "")));
        return { plain, gzip, idempotent, zipped, leader, none, refused, read: await read(topic, "js-produce", 99) };
    },

    // Two members share four partitions; then one leaves, and the other reads the rest.
    async group() {
        const topic = "js-group", groupId = "js-group";
        await create(topic, 4);
        const all = Array.from({ length: 40 }, (_, index) => ({ partition: index % 4, value: `${index}` }));
        // Kafka may have some of the new partitions before the others; then kafkajs sends all records again.
        const once = { idempotent: true, maxInFlightRequests: 1 };
        await produce(topic, all, once);
        const seen = new Set(), assigned = {};
        const member = async (name) => {
            const consumer = kafka.consumer({ groupId, rebalanceTimeout: 10_000, heartbeatInterval: 100, maxWaitTimeInMs: 50 });
            consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => (assigned[name] = payload.memberAssignment[topic] ?? []));
            await consumer.connect();
            await consumer.subscribe({ topics: [/^js-group$/], fromBeginning: true });
            await consumer.run({ eachMessage: async ({ message }) => void seen.add(`${message.value}`) });
            return consumer;
        };
        const first = await member("first");
        await until(() => seen.size === 40);
        const alone = assigned.first.length;
        const second = await member("second");
        await until(() => assigned.first.length === 2 && assigned.second?.length === 2);
        const shared = sorted([...assigned.first, ...assigned.second]);
        const { groups } = await admin.describeGroups([groupId, "js-none"]);
        const described = groups.map(({ errorCode, groupId, members, protocol, protocolType, state }) => [errorCode, groupId, members.length, protocol, protocolType, state]);
        const busy = await attempt(admin.deleteGroups([groupId]));
        const reset = await attempt(admin.resetOffsets({ groupId, topic, earliest: true }));
        await first.disconnect();
        await until(() => assigned.second.length === 4);
        await produce(topic, all.map(({ partition, value }) => ({ partition, value: `late ${value}` })), once);
        await until(() => seen.size === 80);
        await second.disconnect();
        const committed = await committedOffsets(groupId, topic);
        const listed = (await admin.listGroups()).groups.filter((group) => group.groupId === groupId);
        const deleted = await admin.deleteGroups([groupId]);
        const gone = await attempt(admin.deleteGroups([groupId]));
        return { alone, shared, described, busy, reset, committed, listed, deleted: deleted.map(({ groupId, errorCode }) => [groupId, errorCode]), gone };
    },

    async transactions() {
        const topic = "js-transactions", groupId = "js-transactions";
        await create(topic, 1);
        const producer = kafka.producer({ transactionalId: "js", idempotent: true, maxInFlightRequests: 1 });
        await producer.connect();
        for (const [index, ends] of ["commit", "abort", "commit"].entries()) {
            const transaction = await producer.transaction();
            await transaction.send({ topic, messages: values(5, `${ends} ${index} `) });
            await transaction.sendOffsets({ consumerGroupId: groupId, topics: [{ topic, partitions: [{ partition: 0, offset: `${index + 1}` }] }] });
            await transaction[ends]();
        }
        const empty = await producer.transaction();
        await empty.abort();
        await producer.disconnect();
        const found = await read(topic, "js-transactions-read", 10);
        // Kafka ends a transaction before the group shows its offsets.
        const until = Date.now() + 20_000;
        let committed = await committedOffsets(groupId, topic);
        while (JSON.stringify(committed) !== '[[0,"3"]]' && Date.now() < until) {
            await new Promise((done) => setTimeout(done, 50));
            committed = await committedOffsets(groupId, topic);
        }
        return { committed, read: found };
    },

    async offsets() {
        const topic = "js-offsets";
        await create(topic, 2);
        await produce(topic, Array.from({ length: 6 }, (_, index) => ({ partition: 0, value: `${index}`, timestamp: `${1_000_000 * (index + 1)}` })));
        const ends = async () => (await admin.fetchTopicOffsets(topic)).map(({ partition, offset, high, low }) => [partition, offset, high, low]).sort();
        const before = await ends();
        const times = (await admin.fetchTopicOffsetsByTimestamp(topic, 2_500_000)).map(({ partition, offset }) => [partition, offset]).sort();
        await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: "4" }] });
        const after = await ends();
        const all = await attempt(admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: "-1" }] }));
        const beyond = await attempt(admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: "99" }] }));
        const missing = await attempt(admin.fetchTopicOffsets("js none"));
        return { before, times, after, all, end: await ends(), beyond, missing };
    },

    async acls() {
        const acl = {
            resourceType: AclResourceTypes.TOPIC,
            resourceName: "js-acls",
            resourcePatternType: ResourcePatternTypes.LITERAL,
            principal: "User:js",
            host: "*",
            operation: AclOperationTypes.READ,
            permissionType: AclPermissionTypes.ALLOW,
        };
        const describe = async () => (await admin.describeAcls(acl)).resources.map(({ resourceName, acls }) => [resourceName, acls.map(({ principal, operation }) => [principal, operation])]);
        const created = await attempt(admin.createAcls({ acl: [acl] }));
        const described = await attempt(describe());
        const deleted = await attempt(admin.deleteAcls({ filters: [acl] }).then(({ filterResponses }) => filterResponses.map(({ errorCode, matchingAcls }) => [errorCode, matchingAcls.length])));
        return { created, described, deleted, after: await attempt(describe()) };
    },

    async unknown() {
        const topic = "js-unknown";
        const found = await attempt(produce(topic, values(2, "")));
        return { found, listed: (await admin.listTopics()).includes(topic) };
    },

    async seek() {
        const topic = "js-seek";
        await create(topic, 1);
        await produce(topic, values(10, ""));
        const consumer = kafka.consumer({ groupId: topic, maxWaitTimeInMs: 50 });
        const seen = [];
        await consumer.connect();
        await consumer.subscribe({ topic, fromBeginning: true });
        await consumer.run({ eachBatch: async ({ batch }) => void seen.push(...batch.messages.map(({ offset }) => offset), batch.highWatermark) });
        await until(() => seen.includes("9"));
        consumer.seek({ topic, partition: 0, offset: "8" });
        await until(() => seen.filter((offset) => offset === "9").length === 2);
        consumer.pause([{ topic }]);
        const paused = consumer.paused();
        await consumer.stop();
        await consumer.disconnect();
        return { seen, paused };
    },

    // kafkajs waits for 5 s in each step.
    async reset() {
        const topic = "js-reset", groupId = "js-reset";
        await create(topic, 2);
        await produce(topic, values(10, "").map((message, index) => ({ ...message, partition: index % 2 })));
        await admin.setOffsets({ groupId, topic, partitions: [{ partition: 0, offset: "3" }] });
        const set = await committedOffsets(groupId, topic);
        await admin.resetOffsets({ groupId, topic, earliest: true });
        const early = await committedOffsets(groupId, topic);
        const resolved = await committedOffsets(groupId, topic, { resolveOffsets: true });
        return { set, early, resolved };
    },

    async moves() {
        const topic = "js-moves";
        await create(topic, 1);
        const altered = await attempt(admin.alterPartitionReassignments({ topics: [{ topic, partitionAssignment: [{ partition: 0, replicas: [1] }] }] }));
        const refused = await attempt(admin.alterPartitionReassignments({ topics: [{ topic, partitionAssignment: [{ partition: 0, replicas: [77] }] }] }));
        const listed = await attempt(admin.listPartitionReassignments({}));
        return { altered, refused, listed };
    },

    async login() {
        const topic = "js-login";
        await create(topic, 1);
        await produce(topic, values(3, ""));
        return { read: await read(topic, "js-login", 3) };
    },
};

async function main() {
    await admin.connect();
    for (const name of names) {
        const late = setTimeout(() => {
            console.log(JSON.stringify({ check: name, found: { error: "too late" } }));
            process.exit(1);
        }, CHECK_MS);
        console.log(JSON.stringify({ check: name, found: await attempt(checks[name]()) }));
        clearTimeout(late);
    }
    await admin.disconnect();
}

main().then(() => process.exit(0), (error) => {
    console.error(error);
    process.exit(1);
});
