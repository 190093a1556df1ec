// KafkaJS, driven by tests: a command a line on standard input, an answer a line on standard output.
'use strict'

const readline = require('node:readline')
const { Kafka, CompressionTypes, ConfigResourceTypes, logLevel } = require('kafkajs')

const WAIT_MS_MAX = 30_000
const POLL_MS = 20
const CODECS = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP }
const GROUP_OPTIONS = { sessionTimeout: 10_000, rebalanceTimeout: 10_000, heartbeatInterval: 200, maxWaitTimeInMs: 100 }

const kafka = ({ bootstrap }) =>
  new Kafka({ clientId: 'kafkajs', brokers: [bootstrap], logLevel: logLevel.NOTHING, retry: { retries: 8 } })

const text = bytes => (bytes === null || bytes === undefined ? null : bytes.toString())

async function eventually(what, ask) {
  const deadline = Date.now() + WAIT_MS_MAX
  for (;;) {
    const answer = await ask()
    if (answer) return answer
    if (Date.now() > deadline) throw new Error(`${what}: not after ${WAIT_MS_MAX} ms`)
    await new Promise(resolve => setTimeout(resolve, POLL_MS))
  }
}

async function connected(client, work) {
  await client.connect()
  try {
    return await work(client)
  } finally {
    await client.disconnect()
  }
}

async function produce(command) {
  const messages = command.records.map(record => ({
    partition: 0,
    timestamp: String(record.timestamp),
    key: record.key,
    value: record.value,
    headers: Object.fromEntries(record.headers),
  }))
  const producer = kafka(command).producer({ idempotent: true })
  const [sent] = await connected(producer, () =>
    producer.send({ topic: command.topic, acks: -1, compression: CODECS[command.codec], messages })
  )
  if (sent.errorCode) throw new Error(`error code ${sent.errorCode}`)
  return { offsets: messages.map((_, index) => Number(sent.baseOffset) + index) }
}

// It has no consumer without a group, and its default isolation is to read what is committed.
async function consume(command) {
  const records = []
  const consumer = kafka(command).consumer({
    ...GROUP_OPTIONS,
    groupId: `kafkajs-${command.topic}-${command.isolation}`,
    readUncommitted: command.isolation === 'read_uncommitted',
  })
  await connected(consumer, async () => {
    await consumer.subscribe({ topic: command.topic, fromBeginning: true })
    await consumer.run({
      autoCommit: false,
      eachMessage: async ({ message }) => {
        records.push({
          offset: Number(message.offset),
          timestamp: Number(message.timestamp),
          key: text(message.key),
          value: text(message.value),
          headers: Object.entries(message.headers).map(([key, value]) => [key, text(value)]),
        })
      },
    })
    await eventually('all records', () => records.length >= command.count)
  })
  return { records }
}

// A member of a group: what it has of the topic now, and what all members have read so far.
async function member(command, values) {
  const consumer = kafka(command).consumer({ ...GROUP_OPTIONS, groupId: command.group })
  const found = { consumer, partitions: [] }
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    found.partitions = [...(payload.memberAssignment[command.topic] || [])].sort()
  })
  await consumer.connect()
  await consumer.subscribe({ topic: command.topic, fromBeginning: true })
  await consumer.run({ eachMessage: async ({ message }) => void values.push(text(message.value)) })
  return found
}

async function rebalance(command) {
  const values = []
  const first = await member(command, values)
  await eventually('all partitions', () => first.partitions.length === command.partitions)
  const alone = first.partitions
  const second = await member(command, values)
  await eventually('both to have some', () => first.partitions.length < command.partitions && second.partitions.length)
  const shared = [first.partitions, second.partitions]
  await second.consumer.disconnect()
  await eventually('all partitions again', () => first.partitions.length === command.partitions)
  const again = first.partitions
  await eventually('all values', () => new Set(values).size === command.count)
  await first.consumer.disconnect() // commits what was read
  return { alone, shared, again, values }
}

async function transform(command) {
  const client = kafka(command)
  const { source, target, group, count } = command
  const producer = client.producer({
    transactionalId: command.transactional_id,
    maxInFlightRequests: 1,
    idempotent: true,
  })
  const consumer = client.consumer({ ...GROUP_OPTIONS, groupId: group })
  const admin = client.admin()

  const read = []
  const attempt = async ending => {
    const transaction = await producer.transaction()
    const messages = read.slice(0, count).map(value => ({ value: value.toUpperCase() }))
    await transaction.send({ topic: target, messages })
    const partitions = [{ partition: 0, offset: String(count) }]
    await transaction.sendOffsets({ consumerGroupId: group, topics: [{ topic: source, partitions }] })
    await transaction[ending]()
  }
  const committed = async () => {
    const [{ partitions }] = await admin.fetchOffsets({ groupId: group, topics: [source] })
    const { offset } = partitions.find(({ partition }) => partition === 0)
    return offset === '-1' ? null : Number(offset)
  }

  return connected(admin, () =>
    connected(producer, () =>
      connected(consumer, async () => {
        await consumer.subscribe({ topic: source, fromBeginning: true })
        const eachMessage = async ({ message }) => void read.push(text(message.value))
        await consumer.run({ autoCommit: false, eachMessage })
        await eventually('all records', () => read.length >= count)
        await attempt('abort')
        const afterAbort = await committed()
        read.length = 0
        consumer.seek({ topic: source, partition: 0, offset: '0' })
        await eventually('all records again', () => read.length >= count)
        await attempt('commit')
        return { after_abort: afterAbort }
      })
    )
  )
}

async function administer(command) {
  const { topic, filled, group } = command
  const admin = kafka(command).admin()
  const described = async () => (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length
  const resource = { type: ConfigResourceTypes.TOPIC, name: topic }
  const option = async name => {
    const { resources } = await admin.describeConfigs({ resources: [{ ...resource, configNames: [name] }] })
    return resources[0].configEntries.find(({ configName }) => configName === name).configValue
  }
  return connected(admin, async () => {
    const facts = {}
    const configEntries = [{ name: 'retention.ms', value: '1000000' }]
    const topics = [{ topic, numPartitions: 2, replicationFactor: 1, configEntries }]
    await admin.createTopics({ topics, waitForLeaders: true })
    facts.partitions = await described()
    facts.retention = await option('retention.ms')
    const changed = [{ name: 'retention.ms', value: '2000000' }]
    await admin.alterConfigs({ resources: [{ ...resource, configEntries: changed }] })
    facts.altered = await eventually('the new value', async () => {
      const value = await option('retention.ms')
      return value !== facts.retention && value
    })
    await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] })
    facts.grown = await eventually('the third partition', async () => (await described()) === 3 && 3)
    facts.listed = (await admin.listTopics()).includes(topic)
    await admin.deleteTopics({ topics: [topic] })
    facts.gone = await eventually('the end of the topic', async () => !(await admin.listTopics()).includes(topic))
    await admin.deleteTopicRecords({ topic: filled, partitions: [{ partition: 0, offset: '3' }] })
    const [{ low, high }] = await admin.fetchTopicOffsets(filled)
    facts.offsets = [Number(low), Number(high)]
    const { brokers, controller } = await admin.describeCluster()
    facts.nodes = brokers.map(({ nodeId, host, port }) => [nodeId, host, port])
    facts.controller = controller
    facts.group_listed = (await admin.listGroups()).groups.some(({ groupId }) => groupId === group)
    facts.group_state = (await admin.describeGroups([group])).groups[0].state
    const [{ partitions }] = await admin.fetchOffsets({ groupId: group, topics: [filled] })
    facts.committed = Number(partitions[0].offset)
    await admin.deleteGroups([group])
    facts.group_gone = !(await admin.listGroups()).groups.some(({ groupId }) => groupId === group)
    return facts
  })
}

const COMMANDS = { produce, consume, rebalance, transform, administer }

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const command = JSON.parse(line)
    const answer = await COMMANDS[command.do](command).catch(error => ({ error: `${error.stack || error}` }))
    process.stdout.write(`${JSON.stringify(answer)}\n`)
  }
  process.exit(0)
}

main()
