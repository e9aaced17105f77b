import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Kafka's own share consumer behind one JSON request a line, as Agent.java (tests/compat/clients/agent.py). */
public final class Shares {
    private static final class Member {
        KafkaShareConsumer<byte[], byte[]> consumer;
        final Map<String, ConsumerRecord<byte[], byte[]>> had = new HashMap<>();
    }

    private static final Map<String, Member> members = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        Gson gson = new com.google.gson.GsonBuilder().serializeNulls().create();
        for (String line; (line = lines.readLine()) != null; ) {
            JsonObject answer = new JsonObject();
            try {
                answer.add("ok", serve(JsonParser.parseString(line).getAsJsonObject()));
            } catch (Throwable error) {
                answer.addProperty("error", String.valueOf(error));
            }
            System.out.println(gson.toJson(answer));
        }
        System.exit(0);
    }

    private static JsonElement serve(JsonObject asked) {
        String name = asked.get("member").getAsString();
        switch (asked.get("op").getAsString()) {
            case "join":
                return join(name, asked);
            case "poll":
                return poll(members.get(name), asked.get("ms").getAsLong());
            case "acknowledge":
                ConsumerRecord<byte[], byte[]> record =
                        members.get(name).had.get(asked.get("partition").getAsInt() + ":" + asked.get("offset").getAsLong());
                members.get(name).consumer.acknowledge(record, AcknowledgeType.valueOf(asked.get("type").getAsString()));
                return JsonNull.INSTANCE;
            case "commit":
                return commit(members.get(name));
            case "leave":
                members.remove(name).consumer.close();
                return JsonNull.INSTANCE;
            default:
                throw new IllegalArgumentException("no such operation: " + asked.get("op"));
        }
    }

    private static JsonElement join(String name, JsonObject asked) {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", asked.get("address").getAsString());
        config.put("group.id", asked.get("group").getAsString());
        config.put("client.id", name);
        config.put("max.poll.records", asked.get("most").getAsInt());
        config.put("share.acknowledgement.mode", asked.get("mode").getAsString());
        config.put("share.acquire.mode", asked.get("acquire").getAsString());
        Member member = new Member();
        member.consumer = new KafkaShareConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        member.consumer.subscribe(List.of(asked.get("topic").getAsString()));
        members.put(name, member);
        return JsonNull.INSTANCE;
    }

    private static JsonElement poll(Member member, long ms) {
        JsonArray found = new JsonArray();
        for (ConsumerRecord<byte[], byte[]> record : member.consumer.poll(Duration.ofMillis(ms))) {
            member.had.put(record.partition() + ":" + record.offset(), record);
            JsonArray told = new JsonArray();
            told.add(record.partition());
            told.add(record.offset());
            told.add(record.deliveryCount().orElse((short) -1));
            found.add(told);
        }
        return found;
    }

    private static JsonElement commit(Member member) {
        JsonArray failed = new JsonArray();
        for (Map.Entry<TopicIdPartition, Optional<KafkaException>> each : member.consumer.commitSync().entrySet()) {
            each.getValue().ifPresent(error -> failed.add(error.getClass().getSimpleName()));
        }
        return failed;
    }
}
