/* Makes the load of the comparison, with librdkafka from C, so that it measures the broker and not a language.
 *
 * It is linked to the librdkafka in confluent-kafka's wheel, which has no header file: the few functions and the one
 * struct that are used are declared here, as in librdkafka's stable C interface.
 *
 *   driver produce ADDRESS TOPIC PARTITIONS COUNT SIZE KEYS       KEYS 0: without keys
 *   driver consume ADDRESS TOPIC PARTITIONS
 *   driver table ADDRESS TOPIC PARTITIONS                         as consume, and keeps the latest value of each key
 *   driver latency ADDRESS TOPIC RATE SECONDS
 *
 * Each prints one JSON object. With DRIVER_CA in the environment, the PEM file of an authority, connections have TLS.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_topic_conf_s rd_kafka_topic_conf_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
typedef struct rd_kafka_message_s {
    int err;
    rd_kafka_topic_t *topic;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *_private;
} rd_kafka_message_t;
enum { PRODUCER = 0, CONSUMER = 1 };
enum { UNASSIGNED = -1, COPY = 2, BEGINNING = -2 };

rd_kafka_conf_t *rd_kafka_conf_new(void);
int rd_kafka_conf_set(rd_kafka_conf_t *, const char *, const char *, char *, size_t);
void rd_kafka_conf_set_dr_msg_cb(
    rd_kafka_conf_t *, void (*)(rd_kafka_t *, const rd_kafka_message_t *, void *));
rd_kafka_t *rd_kafka_new(int, rd_kafka_conf_t *, char *, size_t);
void rd_kafka_destroy(rd_kafka_t *);
rd_kafka_topic_t *rd_kafka_topic_new(rd_kafka_t *, const char *, rd_kafka_topic_conf_t *);
void rd_kafka_topic_destroy(rd_kafka_topic_t *);
int rd_kafka_produce(rd_kafka_topic_t *, int32_t, int, void *, size_t, const void *, size_t, void *);
int rd_kafka_poll(rd_kafka_t *, int);
int rd_kafka_flush(rd_kafka_t *, int);
rd_kafka_queue_t *rd_kafka_queue_new(rd_kafka_t *);
int rd_kafka_consume_start_queue(rd_kafka_topic_t *, int32_t, int64_t, rd_kafka_queue_t *);
ssize_t rd_kafka_consume_batch_queue(rd_kafka_queue_t *, int, rd_kafka_message_t **, size_t);
void rd_kafka_message_destroy(rd_kafka_message_t *);
int rd_kafka_query_watermark_offsets(rd_kafka_t *, const char *, int32_t, int64_t *, int64_t *, int);

#define CHUNK 1000

static long failed, acknowledged;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void die(const char *text) {
    fprintf(stderr, "%s\n", text);
    exit(1);
}

static void set(rd_kafka_conf_t *conf, const char *name, const char *value) {
    char text[256];
    if (rd_kafka_conf_set(conf, name, value, text, sizeof text) != 0) die(text);
}

static void told(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque) {
    (void)rk, (void)opaque;
    if (message->err) failed++;
    else acknowledged++;
}

static rd_kafka_t *client(int type, const char *address, const char *linger) {
    char text[256];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    set(conf, "bootstrap.servers", address);
    set(conf, "log_level", "0");
    if (getenv("DRIVER_CA")) {
        set(conf, "security.protocol", "SSL");
        set(conf, "ssl.ca.location", getenv("DRIVER_CA"));
    }
    if (type == PRODUCER) {
        set(conf, "acks", "all");
        set(conf, "linger.ms", linger);
        set(conf, "batch.size", "1000000");
        set(conf, "queue.buffering.max.messages", "1000000");
        set(conf, "queue.buffering.max.kbytes", "262144");
        rd_kafka_conf_set_dr_msg_cb(conf, told);
    } else {
        set(conf, "fetch.wait.max.ms", "100");
        set(conf, "queued.min.messages", "1000000");
        set(conf, "fetch.message.max.bytes", "4194304");
        set(conf, "check.crcs", "false");
    }
    rd_kafka_t *rk = rd_kafka_new(type, conf, text, sizeof text);
    if (rk == NULL) die(text);
    return rk;
}

static rd_kafka_topic_t *topic_of(rd_kafka_t *rk, const char *name) {
    rd_kafka_topic_t *topic = rd_kafka_topic_new(rk, name, NULL);
    if (topic == NULL) die("no topic");
    return topic;
}

/* The same order of keys in every run. */
static uint32_t number(void) {
    static uint64_t state = 88172645463325252ULL;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32);
}

static void produce(char **argv) {
    long partitions = atol(argv[4]), count = atol(argv[5]), size = atol(argv[6]), keys = atol(argv[7]);
    rd_kafka_t *rk = client(PRODUCER, argv[2], "5");
    rd_kafka_topic_t *topic = topic_of(rk, argv[3]);
    char *body = malloc(size + 1), key[16];
    for (long at = 0; at < size; at++) body[at] = 'a' + number() % 26;
    double start = now();
    for (long sent = 0; sent < count; sent++) {
        size_t length = 0;
        if (keys) length = snprintf(key, sizeof key, "%012u", (unsigned)(number() % keys));
        /* Without keys partitions take turns of a thousand: full batches for all of them. */
        int32_t partition = keys ? UNASSIGNED : (int32_t)(sent / 1000 % partitions);
        while (rd_kafka_produce(topic, partition, COPY, body, size, length ? key : NULL, length, NULL) != 0)
            rd_kafka_poll(rk, 10);
        if (sent % 1000 == 0) rd_kafka_poll(rk, 0);
    }
    rd_kafka_flush(rk, 300000);
    double seconds = now() - start;
    if (failed || acknowledged != count) die("not everything was acknowledged");
    printf("{\"seconds\": %.6f, \"count\": %ld}\n", seconds, count);
}

/* The latest value of each key: a hash table with open addressing; keys and values are in large blocks of memory. */
struct entry {
    uint64_t hash;
    char *held; /* key, then value; NULL: free */
    uint32_t key_len, len, room;
};
static struct entry *entries;
static size_t slots = 1 << 16, used;
static char *block;
static size_t left;

static uint64_t hash_of(const char *key, size_t length) {
    uint64_t hash = 14695981039346656037ULL, word;
    for (; length >= 8; key += 8, length -= 8) {
        memcpy(&word, key, 8);
        hash = (hash ^ word) * 0x9E3779B97F4A7C15ULL;
        hash ^= hash >> 29;
    }
    for (; length; key++, length--) hash = (hash ^ (unsigned char)*key) * 1099511628211ULL;
    return hash ^ hash >> 32;
}

static struct entry *slot(uint64_t hash, const char *key, size_t length) {
    struct entry *at = &entries[hash & (slots - 1)];
    while (at->held && (at->hash != hash || at->key_len != length || memcmp(at->held, key, length)))
        if (++at == entries + slots) at = entries;
    return at;
}

static void grow(void) {
    struct entry *old = entries, *end = old + slots;
    slots *= 2;
    entries = calloc(slots, sizeof *entries);
    for (struct entry *each = old; each < end; each++)
        if (each->held) *slot(each->hash, each->held, each->key_len) = *each;
    free(old);
}

static void fold(const rd_kafka_message_t *message) {
    uint64_t hash = hash_of(message->key, message->key_len);
    size_t size = message->key_len + message->len;
    struct entry *at = slot(hash, message->key, message->key_len);
    if (!at->held) {
        if (2 * ++used > slots) {
            grow();
            at = slot(hash, message->key, message->key_len);
        }
        at->room = 0;
    }
    if (!at->held || at->room < size) {
        if (left < size) block = malloc(left = (8 << 20) + size);
        at->held = block;
        at->room = size;
        block += size;
        left -= size;
    }
    at->hash = hash;
    at->key_len = message->key_len;
    at->len = message->len;
    memcpy(at->held, message->key, message->key_len);
    memcpy(at->held + message->key_len, message->payload, message->len);
}

/* Reads all partitions to the end that they had at the beginning, with a client that is connected and has metadata. */
static void consume(char **argv, int keep) {
    long partitions = atol(argv[4]), found = 0, at_first = 0, open = 0;
    rd_kafka_t *rk = client(CONSUMER, argv[2], "");
    rd_kafka_topic_t *topic = topic_of(rk, argv[3]);
    rd_kafka_queue_t *queue = rd_kafka_queue_new(rk);
    int64_t *ends = calloc(partitions, sizeof *ends), start_offset;
    for (int32_t partition = 0; partition < partitions; partition++) {
        if (rd_kafka_query_watermark_offsets(rk, argv[3], partition, &start_offset, &ends[partition], 60000) != 0)
            die("no end of the log is known");
        open += ends[partition] > start_offset;
    }
    if (keep) entries = calloc(slots, sizeof *entries);
    double start = now(), first = 0;
    for (int32_t partition = 0; partition < partitions; partition++)
        if (rd_kafka_consume_start_queue(topic, partition, BEGINNING, queue) != 0) die("cannot consume");
    static rd_kafka_message_t *messages[CHUNK];
    double quiet = now();
    while (open) {
        /* Returns when it has as many messages as it was asked for, or after so many milliseconds. */
        ssize_t got = rd_kafka_consume_batch_queue(queue, 5, messages, CHUNK);
        for (ssize_t at = 0; at < got; at++) {
            rd_kafka_message_t *message = messages[at];
            if (message->err == 0) {
                found++;
                if (keep) fold(message);
                /* The last event of the log is its key's latest, so TOPIC@latest has it, too. */
                if (message->offset == ends[message->partition] - 1) open--;
            }
            rd_kafka_message_destroy(message);
        }
        if (got > 0) quiet = now();
        if (found && !first) {
            first = now();
            at_first = found;
        }
        if (now() - quiet > 60) die("nothing has come for a minute");
    }
    double end = now();
    /* per_second: without the time to the first answer, and without that answer's events */
    printf("{\"seconds\": %.6f, \"first\": %.6f, \"count\": %ld, \"keys\": %zu, \"per_second\": %.1f}\n", end - start,
           first - start, found, used, end > first ? (found - at_first) / (end - first) : 0.0);
}

struct reader {
    const char *address, *name;
    long count, found;
    double *seconds;
    volatile int ready;
};

static void *read_all(void *argument) {
    struct reader *reader = argument;
    rd_kafka_t *rk = client(CONSUMER, reader->address, "");
    rd_kafka_topic_t *topic = topic_of(rk, reader->name);
    rd_kafka_queue_t *queue = rd_kafka_queue_new(rk);
    rd_kafka_consume_start_queue(topic, 0, BEGINNING, queue);
    rd_kafka_message_t *messages[1]; /* one at a time, so that each is seen as soon as it arrives */
    double quiet = now();
    while (reader->found < reader->count && now() - quiet < 60) {
        ssize_t got = rd_kafka_consume_batch_queue(queue, 100, messages, 1);
        double arrived = now();
        if (got > 0) quiet = arrived;
        for (ssize_t at = 0; at < got; at++) {
            if (messages[at]->err == 0) {
                double sent;
                memcpy(&sent, messages[at]->payload, sizeof sent);
                if (sent == 0) reader->ready = 1; /* the first event only shows that the reader reads */
                else reader->seconds[reader->found++] = arrived - sent;
            }
            rd_kafka_message_destroy(messages[at]);
        }
    }
    return NULL;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void latency(char **argv) {
    long rate = atol(argv[4]), count = rate * atol(argv[5]);
    struct reader reader = {argv[2], argv[3], count, 0, malloc(count * sizeof(double)), 0};
    rd_kafka_t *rk = client(PRODUCER, argv[2], "0");
    rd_kafka_topic_t *topic = topic_of(rk, argv[3]);
    pthread_t thread;
    char body[100] = {0};
    rd_kafka_produce(topic, 0, COPY, body, sizeof body, NULL, 0, NULL);
    rd_kafka_flush(rk, 60000);
    pthread_create(&thread, NULL, read_all, &reader);
    while (!reader.ready) rd_kafka_poll(rk, 10);
    double start = now();
    for (long sent = 0; sent < count; sent++) {
        double due = start + (double)sent / rate, left = due - now();
        if (left > 0) {
            struct timespec pause = {(time_t)left, (long)((left - (time_t)left) * 1e9)};
            nanosleep(&pause, NULL);
        }
        memcpy(body, &due, sizeof due); /* when it was due, so that a stall of the sender counts */
        while (rd_kafka_produce(topic, 0, COPY, body, sizeof body, NULL, 0, NULL) != 0) rd_kafka_poll(rk, 10);
        rd_kafka_poll(rk, 0);
    }
    rd_kafka_flush(rk, 60000);
    pthread_join(thread, NULL);
    if (reader.found != count || failed) die("not everything arrived");
    qsort(reader.seconds, count, sizeof(double), ascending);
    printf("{\"p50\": %.6f, \"p99\": %.6f, \"p999\": %.6f, \"max\": %.6f, \"count\": %ld}\n", reader.seconds[count / 2],
           reader.seconds[count * 99 / 100], reader.seconds[count * 999 / 1000], reader.seconds[count - 1], count);
}

int main(int argc, char **argv) {
    if (argc == 8 && !strcmp(argv[1], "produce")) produce(argv);
    else if (argc == 5 && !strcmp(argv[1], "consume")) consume(argv, 0);
    else if (argc == 5 && !strcmp(argv[1], "table")) consume(argv, 1);
    else if (argc == 6 && !strcmp(argv[1], "latency")) latency(argv);
    else die("usage: see the head of driver.c");
    fflush(stdout);
    _exit(0);
}
