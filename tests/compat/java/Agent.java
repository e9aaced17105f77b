import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Kafka's own Java client behind one JSON request a line, each answered by one line (tests/compat/clients/agent.py). */
public final class Agent {
    private static final int PATIENCE_MS = 60_000;
    private static final Map<String, KafkaConsumer<byte[], byte[]>> members = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        Gson gson = new com.google.gson.GsonBuilder().serializeNulls().create();
        for (String line; (line = lines.readLine()) != null; ) {
            JsonObject answer = new JsonObject();
            try {
                answer.add("ok", serve(JsonParser.parseString(line).getAsJsonObject()));
            } catch (Throwable error) {
                Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
                answer.addProperty("error", String.valueOf(cause));
            }
            System.out.println(gson.toJson(answer));
        }
        System.exit(0); // members that were not closed end with the process
    }

    private static JsonElement serve(JsonObject asked) throws Exception {
        switch (asked.get("op").getAsString()) {
            case "produce":
                return produce(asked);
            case "stream":
                return stream(asked);
            case "consume":
                return consume(asked);
            case "join":
                return join(asked);
            case "poll":
                return poll(asked);
            case "assignment":
                return assignment(asked);
            case "commit":
                member(asked).commitSync(Duration.ofMillis(PATIENCE_MS));
                return JsonNull.INSTANCE;
            case "leave":
                members.remove(asked.get("member").getAsString()).close();
                return JsonNull.INSTANCE;
            default:
                throw new IllegalArgumentException("no such operation: " + asked.get("op"));
        }
    }

    private static KafkaConsumer<byte[], byte[]> member(JsonObject asked) {
        return members.get(asked.get("member").getAsString());
    }

    private static JsonElement produce(JsonObject asked) throws Exception {
        Map<String, Object> config = new HashMap<>();
        boolean transactional = !asked.get("transactional").isJsonNull();
        config.put("bootstrap.servers", asked.get("address").getAsString());
        config.put("acks", asked.get("acks").getAsString());
        config.put("compression.type", asked.get("codec").getAsString());
        config.put("enable.idempotence", asked.get("idempotent").getAsBoolean());
        config.put("max.request.size", asked.get("maxBytes").getAsInt());
        config.put("buffer.memory", Math.max(33_554_432L, 4L * asked.get("maxBytes").getAsInt()));
        config.put("linger.ms", 5);
        config.put("request.timeout.ms", 10_000);
        config.put("delivery.timeout.ms", 20_000);
        config.put("max.block.ms", PATIENCE_MS);
        if (transactional) config.put("transactional.id", asked.get("transactional").getAsString());
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            if (transactional) {
                producer.initTransactions();
                producer.beginTransaction();
            }
            List<Future<RecordMetadata>> told = new ArrayList<>();
            for (JsonElement element : asked.getAsJsonArray("messages")) {
                JsonObject message = element.getAsJsonObject();
                Long timestamp = message.get("t").isJsonNull() ? null : (Long) message.get("t").getAsLong();
                ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(
                        asked.get("topic").getAsString(), message.get("p").getAsInt(), timestamp,
                        bytes(message.get("k")), bytes(message.get("v")));
                for (JsonElement header : message.getAsJsonArray("h")) {
                    JsonArray pair = header.getAsJsonArray();
                    record.headers().add(pair.get(0).getAsString(), bytes(pair.get(1)));
                }
                told.add(producer.send(record));
            }
            producer.flush();
            JsonArray offsets = new JsonArray();
            for (Future<RecordMetadata> future : told) offsets.add(future.get().offset());
            if (asked.get("abort").getAsBoolean()) producer.abortTransaction();
            else if (transactional) producer.commitTransaction();
            return offsets;
        }
    }

    /** Writes the numbers from 0 on to the partitions in turn, and returns when all are acknowledged. */
    private static JsonElement stream(JsonObject asked) throws Exception {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", asked.get("address").getAsString());
        config.put("enable.idempotence", true);
        config.put("linger.ms", 5);
        config.put("delivery.timeout.ms", PATIENCE_MS - 5_000);
        int partitions = asked.get("partitions").getAsInt(), count = asked.get("count").getAsInt();
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<RecordMetadata>> told = new ArrayList<>();
            long begun = System.currentTimeMillis();
            for (int number = 0; number < count; number++) {
                long due = begun + number * 1000L / asked.get("perSecond").getAsInt();
                Thread.sleep(Math.max(0, due - System.currentTimeMillis()));
                told.add(producer.send(new ProducerRecord<>(
                        asked.get("topic").getAsString(), number % partitions, null, String.valueOf(number).getBytes())));
            }
            producer.flush();
            for (Future<RecordMetadata> future : told) future.get();
            return JsonNull.INSTANCE;
        }
    }

    private static Map<String, Object> consumerConfig(JsonObject asked) {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", asked.get("address").getAsString());
        config.put("enable.auto.commit", false);
        config.put("auto.offset.reset", "earliest");
        config.put("fetch.max.wait.ms", 100);
        return config;
    }

    private static JsonElement consume(JsonObject asked) {
        Map<String, Object> config = consumerConfig(asked);
        config.put("isolation.level", asked.get("isolation").getAsString());
        String topic = asked.get("topic").getAsString();
        int count = asked.get("count").getAsInt();
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> partitions = new ArrayList<>();
            for (PartitionInfo info : consumer.partitionsFor(topic)) {
                partitions.add(new TopicPartition(topic, info.partition()));
            }
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            JsonArray found = new JsonArray();
            long end = System.currentTimeMillis() + PATIENCE_MS - 5_000;
            while (found.size() < count) {
                if (System.currentTimeMillis() > end) {
                    throw new IllegalStateException("was given " + found.size() + " of " + count + " messages");
                }
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    if (found.size() < count) found.add(json(record));
                }
            }
            return found;
        }
    }

    private static JsonElement join(JsonObject asked) {
        Map<String, Object> config = consumerConfig(asked);
        config.put("group.id", asked.get("group").getAsString());
        if (!asked.get("instance").isJsonNull()) config.put("group.instance.id", asked.get("instance").getAsString());
        if (asked.get("protocol").getAsString().equals("consumer")) {
            config.put("group.protocol", "consumer");
        } else {
            config.put("session.timeout.ms", 6000);
            config.put("heartbeat.interval.ms", 300);
        }
        KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        consumer.subscribe(List.of(asked.get("topic").getAsString()));
        members.put(asked.get("member").getAsString(), consumer);
        return JsonNull.INSTANCE;
    }

    private static JsonElement poll(JsonObject asked) {
        JsonArray found = new JsonArray();
        for (ConsumerRecord<byte[], byte[]> record : member(asked).poll(Duration.ofMillis(200))) found.add(json(record));
        return found;
    }

    private static JsonElement assignment(JsonObject asked) {
        JsonArray found = new JsonArray();
        for (TopicPartition partition : member(asked).assignment()) {
            JsonArray pair = new JsonArray();
            pair.add(partition.topic());
            pair.add(partition.partition());
            found.add(pair);
        }
        return found;
    }

    private static JsonObject json(ConsumerRecord<byte[], byte[]> record) {
        JsonObject found = new JsonObject();
        found.addProperty("p", record.partition());
        found.addProperty("o", record.offset());
        found.addProperty("t", record.timestamp());
        found.add("k", text(record.key()));
        found.add("v", text(record.value()));
        JsonArray headers = new JsonArray();
        for (Header header : record.headers()) {
            JsonArray pair = new JsonArray();
            pair.add(header.key());
            pair.add(text(header.value()));
            headers.add(pair);
        }
        found.add("h", headers);
        return found;
    }

    private static byte[] bytes(JsonElement text) {
        return text.isJsonNull() ? null : Base64.getDecoder().decode(text.getAsString());
    }

    private static JsonElement text(byte[] data) {
        return data == null
                ? JsonNull.INSTANCE
                : new com.google.gson.JsonPrimitive(Base64.getEncoder().encodeToString(data));
    }
}
