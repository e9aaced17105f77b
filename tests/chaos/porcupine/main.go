// Tells whether histories of registers are linearizable, by porcupine.
//
// Standard input: a JSON list of operations, as tests/chaos/histories.py has them. Standard output: {"verdicts": {KEY:
// "ok" | "illegal" | "unknown"}}. "unknown": not decided within as many seconds as the first argument says. The second
// argument is a folder; a picture of each history that is not linearizable goes there.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/anishathalye/porcupine"
)

type operation struct {
	Client   int    `json:"client"`
	Key      string `json:"key"`
	Kind     string `json:"kind"`
	Value    string `json:"value"`
	Expected string `json:"expected"`
	Called   int64  `json:"called"`
	Returned int64  `json:"returned"`
	Outcome  string `json:"outcome"`
}

// A register is absent ("") at first. An operation without an answer may be done at any time after its call, or never.
var register = porcupine.NondeterministicModel{
	Init: func() []interface{} { return []interface{}{""} },
	Step: func(state, input, output interface{}) []interface{} {
		now, asked := state.(string), input.(operation)
		fits := asked.Kind == "write" || now == asked.Expected
		switch {
		case asked.Kind == "read":
			if now == asked.Value {
				return []interface{}{now}
			}
		case asked.Outcome == "ok":
			if fits {
				return []interface{}{asked.Value}
			}
		case asked.Outcome == "mismatch":
			if !fits {
				return []interface{}{now}
			}
		case asked.Outcome == "unknown":
			if fits {
				return []interface{}{now, asked.Value}
			}
			return []interface{}{now}
		}
		return nil
	},
	Equal: func(one, other interface{}) bool { return one == other },
	DescribeOperation: func(input, output interface{}) string {
		asked := input.(operation)
		if asked.Kind == "read" {
			return fmt.Sprintf("read %q", asked.Value)
		}
		return fmt.Sprintf("%s %q -> %q: %s", asked.Kind, asked.Expected, asked.Value, asked.Outcome)
	},
	DescribeState: func(state interface{}) string { return fmt.Sprint(state) },
}

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: porcupine SECONDS FOLDER < HISTORY")
	}
	seconds, err := strconv.ParseFloat(os.Args[1], 64)
	if err != nil {
		log.Fatal(err)
	}
	var operations []operation
	if err := json.NewDecoder(os.Stdin).Decode(&operations); err != nil {
		log.Fatal(err)
	}
	keys := map[string][]porcupine.Operation{}
	for _, each := range operations {
		returned := each.Returned
		if each.Outcome == "unknown" {
			returned = math.MaxInt64
		}
		keys[each.Key] = append(keys[each.Key], porcupine.Operation{
			ClientId: each.Client, Input: each, Call: each.Called, Output: nil, Return: returned,
		})
	}
	model := register.ToModel()
	verdicts := map[string]string{}
	for key, history := range keys {
		verdict, info := porcupine.CheckOperationsVerbose(model, history, time.Duration(seconds*float64(time.Second)))
		verdicts[key] = map[porcupine.CheckResult]string{
			porcupine.Ok: "ok", porcupine.Illegal: "illegal", porcupine.Unknown: "unknown",
		}[verdict]
		if verdict == porcupine.Illegal {
			path := filepath.Join(os.Args[2], "not-linearizable-"+key+".html")
			if err := porcupine.VisualizePath(model, info, path); err != nil {
				log.Print(err)
			}
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(map[string]any{"verdicts": verdicts}); err != nil {
		log.Fatal(err)
	}
}
