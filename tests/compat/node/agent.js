// kafkajs behind one JSON request a line, each answered by one line (tests/compat/clients/agent.py).
'use strict'

const { readFileSync } = require('node:fs')
const readline = require('node:readline')
// Where `npm ci` put it: node finds modules beside this file or by NODE_PATH.
const { Kafka, CompressionTypes, logLevel, Partitioners } = require('kafkajs')

const PATIENCE_MS = 55_000
const members = new Map()

const bytes = (text) => (text === null ? null : Buffer.from(text, 'base64'))
const text = (data) => (data === null || data === undefined ? null : Buffer.from(data).toString('base64'))
const sleep = (ms) => new Promise((done) => setTimeout(done, ms))

// How to connect: over TLS, as who.
function secured({ ca, cert, mechanism, user, password }) {
  const pem = cert ? readFileSync(cert) : undefined
  return {
    ssl: { ca: [readFileSync(ca)], cert: pem, key: pem },
    sasl: mechanism ? { mechanism: mechanism.toLowerCase(), username: user, password } : undefined,
  }
}

function kafka(asked) {
  return new Kafka({
    clientId: 'compat',
    brokers: [asked.address],
    ...(asked.security ? secured(asked.security) : {}),
    logLevel: logLevel.NOTHING,
    retry: { initialRetryTime: 50, retries: 8 },
  })
}

function found(partition, message) {
  const headers = []
  for (const [name, value] of Object.entries(message.headers ?? {})) {
    for (const one of Array.isArray(value) ? value : [value]) headers.push([name, text(one)])
  }
  return {
    p: partition,
    o: Number(message.offset),
    t: Number(message.timestamp),
    k: text(message.key),
    v: text(message.value),
    h: headers,
  }
}

async function produce(asked) {
  const producer = kafka(asked).producer({
    idempotent: asked.idempotent,
    transactionalId: asked.transactional ?? undefined,
    maxInFlightRequests: asked.idempotent ? 1 : undefined,
    createPartitioner: Partitioners.DefaultPartitioner,
  })
  await producer.connect()
  try {
    const sender = asked.transactional === null ? producer : await producer.transaction()
    const messages = asked.messages.map((message) => ({
      partition: message.p,
      key: bytes(message.k),
      value: bytes(message.v),
      timestamp: message.t === null ? undefined : String(message.t),
      headers: Object.fromEntries(message.h.map(([name, value]) => [name, bytes(value)])),
    }))
    const told = await sender.send({
      topic: asked.topic,
      messages,
      acks: { 0: 0, 1: 1, all: -1 }[asked.acks],
      compression: asked.codec === 'gzip' ? CompressionTypes.GZIP : CompressionTypes.None,
    })
    if (asked.transactional !== null) await (asked.abort ? sender.abort() : sender.commit())
    if (asked.acks === '0') return []
    const next = Object.fromEntries(told.map((part) => [part.partition, Number(part.baseOffset)]))
    return asked.messages.map((message) => next[message.p]++)
  } finally {
    await producer.disconnect()
  }
}

async function start(asked, group, isolation) {
  const consumer = kafka(asked).consumer({
    groupId: group,
    readUncommitted: isolation === 'read_uncommitted',
    sessionTimeout: 6000,
    heartbeatInterval: 300,
    rebalanceTimeout: 6000,
    maxWaitTimeInMs: 100,
  })
  const member = { topic: asked.topic, consumer, arrived: [], assigned: [], next: new Map() }
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    member.assigned = Object.entries(payload.memberAssignment).flatMap(([topic, numbers]) =>
      numbers.map((number) => [topic, number]),
    )
  })
  consumer.on(consumer.events.REBALANCING, () => { member.assigned = [] })
  await consumer.connect()
  await consumer.subscribe({ topics: [asked.topic], fromBeginning: true })
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ partition, message }) => {
      member.next.set(partition, Number(message.offset) + 1)
      member.arrived.push(found(partition, message))
    },
  })
  return member
}

async function consume(asked) {
  const member = await start(asked, `reader-${process.pid}-${Math.random()}`, asked.isolation)
  try {
    const end = Date.now() + PATIENCE_MS
    while (member.arrived.length < asked.count) {
      if (Date.now() > end) throw new Error(`was given ${member.arrived.length} of ${asked.count} messages`)
      await sleep(20)
    }
    return member.arrived.slice(0, asked.count)
  } finally {
    await member.consumer.disconnect()
  }
}

const operations = {
  produce,
  consume,
  async join(asked) {
    members.set(asked.member, await start(asked, asked.group, 'read_uncommitted'))
    return null
  },
  async poll(asked) {
    await sleep(200)
    return members.get(asked.member).arrived.splice(0)
  },
  async assignment(asked) {
    return members.get(asked.member).assigned
  },
  async commit(asked) {
    const member = members.get(asked.member)
    const offsets = [...member.next].map(([partition, offset]) => ({
      topic: member.topic,
      partition,
      offset: String(offset),
    }))
    await member.consumer.commitOffsets(offsets)
    return null
  },
  async leave(asked) {
    await members.get(asked.member).consumer.disconnect()
    members.delete(asked.member)
    return null
  },
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const asked = JSON.parse(line)
    let answer
    try {
      answer = { ok: await operations[asked.op](asked) }
    } catch (error) {
      answer = { error: `${error.name} ${error.type ?? ''}: ${error.message}` }
    }
    process.stdout.write(JSON.stringify(answer) + '\n')
  }
  process.exit(0) // members that were not closed end with the process
}

main()
