// Go's clients of Kafka behind one JSON request a line, each answered by one line (tests/compat/clients/agent.py):
// `agent franz-go`, `agent sarama` or `agent kafka-go`.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"sync"
	"time"
)

const patience = 55 * time.Second

type request struct {
	Op            string    `json:"op"`
	Address       string    `json:"address"`
	Topic         string    `json:"topic"`
	Partitions    int       `json:"partitions"`
	Count         int       `json:"count"`
	PerSecond     int       `json:"perSecond"`
	Isolation     string    `json:"isolation"`
	Messages      []message `json:"messages"`
	Acks          string    `json:"acks"`
	Codec         string    `json:"codec"`
	Idempotent    bool      `json:"idempotent"`
	Transactional *string   `json:"transactional"`
	Abort         bool      `json:"abort"`
	MaxBytes      int       `json:"maxBytes"`
	Member        string    `json:"member"`
	Group         string    `json:"group"`
	Instance      *string   `json:"instance"`
	Security      *security `json:"security"`
}

// security says how to connect: over TLS, as who.
type security struct {
	CA        string `json:"ca"`
	Cert      string `json:"cert"`
	Mechanism string `json:"mechanism"`
	User      string `json:"user"`
	Password  string `json:"password"`
}

func (found *security) tls() (*tls.Config, error) {
	pem, err := os.ReadFile(found.CA)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(pem)
	if found.Cert != "" {
		certificate, err := tls.LoadX509KeyPair(found.Cert, found.Cert)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{certificate}
	}
	return config, nil
}

type message struct {
	Partition int32       `json:"p"`
	Offset    int64       `json:"o"`
	Timestamp *int64      `json:"t"`
	Key       *string     `json:"k"`
	Value     *string     `json:"v"`
	Headers   [][]*string `json:"h"`
}

// operation serves a request. A client serves some by their names.
type operation func(context.Context, request) (any, error)

var clients = map[string]map[string]operation{
	"franz-go": {"produce": franzProduce, "stream": franzStream, "consume": franzConsume},
	"sarama": withGroups(saramaJoin, map[string]operation{
		"produce": saramaProduce, "stream": saramaStream, "consume": saramaConsume,
	}),
	"kafka-go": withGroups(kafkaGoJoin, map[string]operation{"produce": kafkaGoProduce, "consume": kafkaGoConsume}),
}

func main() {
	served := clients[os.Args[1]]
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<20), 64<<20)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var asked request
		answer := map[string]any{}
		err := json.Unmarshal(lines.Bytes(), &asked)
		if err == nil {
			answer["ok"], err = serve(served, asked)
		}
		if err != nil {
			answer = map[string]any{"error": err.Error()}
		}
		out.Encode(answer)
	}
}

func serve(served map[string]operation, asked request) (any, error) {
	found, known := served[asked.Op]
	if !known {
		return nil, fmt.Errorf("no such operation: %s", asked.Op)
	}
	context, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return found(context, asked)
}

// member is one of a consumer group. What arrives is kept until it is polled.
type member struct {
	mutex    sync.Mutex
	arrived  []message
	assigned [][]any
	next     map[int32]int64 // by partition: the offset behind what was polled
	commit   func(topic string, next map[int32]int64) error
	close    func() error
}

// take notes what a client was given.
func (member *member) take(found message) {
	member.mutex.Lock()
	defer member.mutex.Unlock()
	member.arrived = append(member.arrived, found)
}

// assign notes the partitions of a topic that it holds from now on.
func (member *member) assign(topic string, partitions []int32) {
	member.mutex.Lock()
	defer member.mutex.Unlock()
	member.assigned = [][]any{}
	for _, partition := range partitions {
		member.assigned = append(member.assigned, []any{topic, partition})
	}
}

// run serves one session of the group after the other, until it is closed.
func (member *member) run(group io.Closer, session func(context.Context)) {
	running, cancel := context.WithCancel(context.Background())
	member.close = func() error {
		cancel()
		return group.Close()
	}
	go func() {
		for running.Err() == nil {
			session(running)
		}
	}()
}

// withGroups adds the operations of a client that has groups, of which `join` joins one.
func withGroups(join func(request, *member) error, served map[string]operation) map[string]operation {
	members := map[string]*member{}
	maps.Copy(served, map[string]operation{
		"join": func(_ context.Context, asked request) (any, error) {
			found := &member{next: map[int32]int64{}, assigned: [][]any{}}
			members[asked.Member] = found
			return nil, join(asked, found)
		},
		"poll": func(_ context.Context, asked request) (any, error) {
			time.Sleep(200 * time.Millisecond)
			member := members[asked.Member]
			member.mutex.Lock()
			defer member.mutex.Unlock()
			arrived := append([]message{}, member.arrived...)
			member.arrived = nil
			for _, each := range arrived {
				member.next[each.Partition] = each.Offset + 1
			}
			return arrived, nil
		},
		"assignment": func(_ context.Context, asked request) (any, error) {
			member := members[asked.Member]
			member.mutex.Lock()
			defer member.mutex.Unlock()
			return member.assigned, nil
		},
		"commit": func(_ context.Context, asked request) (any, error) {
			member := members[asked.Member]
			member.mutex.Lock()
			topic, next := "", map[int32]int64{}
			for _, each := range member.assigned {
				topic = each[0].(string)
				if offset, polled := member.next[each[1].(int32)]; polled {
					next[each[1].(int32)] = offset
				}
			}
			commit := member.commit
			member.mutex.Unlock()
			if commit == nil {
				return nil, errors.New("it has no partitions yet")
			}
			return nil, commit(topic, next)
		},
		"leave": func(_ context.Context, asked request) (any, error) {
			member := members[asked.Member]
			delete(members, asked.Member)
			return nil, member.close()
		},
	})
	return served
}

// headersOf gives headers as they are sent.
func headersOf[T any](sent [][]*string, header func(name string, value []byte) T) []T {
	found := []T{}
	for _, each := range sent {
		found = append(found, header(*each[0], data(each[1])))
	}
	return found
}

// milliseconds since the epoch.
func milliseconds(at time.Time) *int64 {
	found := at.UnixMilli()
	return &found
}

func text(data []byte) *string {
	if data == nil {
		return nil
	}
	encoded := base64.StdEncoding.EncodeToString(data)
	return &encoded
}

func data(encoded *string) []byte {
	if encoded == nil {
		return nil
	}
	decoded, _ := base64.StdEncoding.DecodeString(*encoded)
	return decoded
}
