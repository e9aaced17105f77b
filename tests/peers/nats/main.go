// Makes the load on NATS JetStream KV with NATS's own client: the same as `krappy bench` makes on a broker.
//
//	driver ADDRESS put COUNT KEYS SIZE        pipelined, on one connection
//	driver ADDRESS put-one COUNT KEYS SIZE CONNECTIONS
//	driver ADDRESS get COUNT KEYS SIZE CONNECTIONS WINDOW
//	driver ADDRESS all KEYS SIZE              every key's latest value, to a new reader
//
// SIZE: bytes of a key (12) and its value together. Prints one line of JSON: seconds, done, latencies in milliseconds.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	keySize = 12
	pending = 4096 // puts in flight, pipelined
)

type result struct {
	Seconds float64 `json:"seconds"`
	Done    int     `json:"done"`
	P50     float64 `json:"p50"`
	P99     float64 `json:"p99"`
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func key(number int) string { return fmt.Sprintf("k%011d", number) }

func connect(address string) (*nats.Conn, nats.JetStreamContext) {
	conn, err := nats.Connect("nats://" + address)
	must(err)
	js, err := conn.JetStream(nats.PublishAsyncMaxPending(pending))
	must(err)
	return conn, js
}

// Makes a new bucket for this run, on disk, with one version of each key.
func bucket(js nats.JetStreamContext) (nats.KeyValue, string) {
	name := "b" + strconv.FormatInt(time.Now().UnixNano(), 36)
	kv, err := js.CreateKeyValue(&nats.KeyValueConfig{Bucket: name, History: 1, Storage: nats.FileStorage})
	must(err)
	return kv, name
}

// Sends what kv.Put sends, without waiting for each answer.
func pipelined(js nats.JetStreamContext, name string, count, keys int, value []byte, in func(int) int) {
	futures := make([]nats.PubAckFuture, 0, count)
	for number := range count {
		future, err := js.PublishAsync("$KV."+name+"."+key(in(number)%keys), value, nats.StallWait(time.Minute))
		must(err)
		futures = append(futures, future)
	}
	<-js.PublishAsyncComplete()
	for _, future := range futures {
		select {
		case <-future.Ok():
		case err := <-future.Err():
			must(err)
		}
	}
}

// Does `count` operations over several connections, each with a window of operations at a time.
func shared(address, name string, count, connections, window int, one func(nats.KeyValue, *rand.Rand)) result {
	var ready, ended sync.WaitGroup
	begin := make(chan struct{})
	workers := connections * window
	took := make([][]float64, workers)
	for number := range connections {
		conn, js := connect(address)
		defer conn.Close()
		for slot := range window {
			worker := number*window + slot
			ready.Add(1)
			ended.Add(1)
			go func() {
				defer ended.Done()
				kv, err := js.KeyValue(name)
				must(err)
				chance := rand.New(rand.NewSource(int64(worker)))
				ready.Done()
				<-begin
				for range count / workers {
					began := time.Now()
					one(kv, chance)
					took[worker] = append(took[worker], time.Since(began).Seconds()*1000)
				}
			}()
		}
	}
	ready.Wait()
	began := time.Now()
	close(begin)
	ended.Wait()
	seconds := time.Since(began).Seconds()
	var all []float64
	for _, some := range took {
		all = append(all, some...)
	}
	sort.Float64s(all)
	return result{seconds, len(all), all[len(all)/2], all[len(all)*99/100]}
}

func main() {
	address, what := os.Args[1], os.Args[2]
	var numbers []int
	for _, text := range os.Args[3:] {
		number, err := strconv.Atoi(text)
		must(err)
		numbers = append(numbers, number)
	}
	conn, js := connect(address)
	defer conn.Close()
	kv, name := bucket(js)
	var found result
	switch what {
	case "put":
		count, keys, size := numbers[0], numbers[1], numbers[2]
		value := bytes.Repeat([]byte("v"), size-keySize)
		began := time.Now()
		pipelined(js, name, count, keys, value, func(number int) int { return number })
		found = result{Seconds: time.Since(began).Seconds(), Done: count}
	case "put-one":
		count, keys, size := numbers[0], numbers[1], numbers[2]
		value := bytes.Repeat([]byte("v"), size-keySize)
		found = shared(address, name, count, numbers[3], 1, func(kv nats.KeyValue, chance *rand.Rand) {
			_, err := kv.Put(key(chance.Intn(keys)), value)
			must(err)
		})
	case "get":
		count, keys, size := numbers[0], numbers[1], numbers[2]
		value := bytes.Repeat([]byte("v"), size-keySize)
		pipelined(js, name, keys, keys, value, func(number int) int { return number })
		found = shared(address, name, count, numbers[3], numbers[4], func(kv nats.KeyValue, chance *rand.Rand) {
			_, err := kv.Get(key(chance.Intn(keys)))
			must(err)
		})
	case "all":
		keys, size := numbers[0], numbers[1]
		order := rand.New(rand.NewSource(1)).Perm(keys)
		value := bytes.Repeat([]byte("v"), size-keySize)
		pipelined(js, name, keys, keys, value, func(number int) int { return order[number] })
		began := time.Now()
		watcher, err := kv.WatchAll()
		must(err)
		for entry := range watcher.Updates() {
			if entry == nil {
				break
			}
			found.Done++
		}
		found.Seconds = time.Since(began).Seconds()
		must(watcher.Stop())
		if found.Done != keys {
			must(fmt.Errorf("%d of %d keys were told", found.Done, keys))
		}
	default:
		must(fmt.Errorf("unknown: %s", what))
	}
	if what != "all" { // the bucket of "all" is kept, as data for the measure of the next start
		must(js.DeleteKeyValue(name))
	}
	must(json.NewEncoder(os.Stdout).Encode(found))
}
