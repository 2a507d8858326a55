package jsonrpc_test

import (
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
)

// A jsonGenerator generates JSON values that resemble messages of clients and servers. It adds variations that an
// attacker might use: duplicate keys, other spellings of keys, keys reserved for the gateway at any position, and
// whitespace.
type jsonGenerator struct{ t *rapid.T }

func (s jsonGenerator) pick(label string, choices ...string) string {
	return rapid.SampledFrom(choices).Draw(s.t, label)
}

func (s jsonGenerator) space() string { return s.pick("space", "", "", "", " ", "\n\t ") }

func (s jsonGenerator) key(keys []string) string {
	key := rapid.SampledFrom(keys).Draw(s.t, "key")
	if rapid.IntRange(0, 9).Draw(s.t, "escape") == 0 {
		key = strings.NewReplacer("a", `\u0061`, "e", `\u0065`, "/", `\/`).Replace(key)
	}
	return `"` + key + `"`
}

func (s jsonGenerator) object(width int, keys []string, value func(key string) string) string {
	members := make([]string, rapid.IntRange(0, width).Draw(s.t, "width"))
	for i := range members {
		key := s.key(keys)
		members[i] = s.space() + key + s.space() + ":" + s.space() + value(key) + s.space()
	}
	return "{" + strings.Join(members, ",") + "}"
}

func (s jsonGenerator) list(width int, element func() string) string {
	elements := make([]string, rapid.IntRange(0, width).Draw(s.t, "width"))
	for i := range elements {
		elements[i] = s.space() + element() + s.space()
	}
	return "[" + strings.Join(elements, ",") + "]"
}

func (s jsonGenerator) value(depth int) string {
	kinds := 8
	if depth > 0 {
		kinds = 11
	}
	switch rapid.IntRange(0, kinds).Draw(s.t, "kind") {
	case 9:
		return s.list(3, func() string { return s.value(depth - 1) })
	case 10, 11:
		return s.object(4, innerKeys, func(string) string { return s.value(depth - 1) })
	default:
		return s.pick("scalar", `1`, `-7`, `1.50`, `1e3`, `true`, `null`, `"x"`, `"\u00e9\n\ud83d\ude00"`, `""`)
	}
}

var (
	innerKeys  = []string{"a", "b", "c", "_meta", "_Meta", "name", "dev.sluice/x", "Dev.Sluice/y", "dev.sluice/run", "héé"}
	metaKeys   = []string{"a", "b", "_meta", "dev.sluice/run", "dev.sluice/approval", "dev.sluice/z", "traceparent", "tracestate", "baggage", "progressToken"}
	paramsKeys = []string{"name", "arguments", "_meta", "_meta", "x", "y", "dev.sluice/run"}
	resultKeys = []string{"tools", "tools", "_meta", "isError", "content", "structuredContent", "nextCursor", "x"}
	toolKeys   = []string{"name", "name", "Name", "_meta", "description", "inputSchema"}
)

func (s jsonGenerator) request() string {
	params := s.object(4, paramsKeys, func(key string) string {
		switch {
		case strings.HasPrefix(key, `"_m`):
			return s.object(5, metaKeys, func(string) string {
				return s.pick("meta", `"x"`, `"x"`, `"x"`, `"x"`, `7`, `{"_meta":{"dev.sluice/x":1}}`)
			})
		case strings.HasPrefix(key, `"n`):
			return s.pick("name", `"safe"`, `"s\u0061fe"`, `"a/b"`)
		default:
			return s.value(2)
		}
	})
	members := []string{`"jsonrpc":"2.0"`, `"id":` + s.pick("id", `1`, `"a"`, `"\u0061"`), `"method":` + s.pick("method", `"tools/call"`, `"tools\/call"`, `"ping"`), `"params":` + params}
	return "{" + s.space() + strings.Join(rapid.Permutation(members).Draw(s.t, "order"), ",") + s.space() + "}"
}

func (s jsonGenerator) answer() string {
	result := s.object(5, resultKeys, func(key string) string {
		if !strings.HasPrefix(key, `"t`) {
			return s.value(3)
		}
		return s.list(4, func() string {
			return s.object(3, toolKeys, func(key string) string {
				if strings.HasPrefix(strings.ToLower(key), `"n`) {
					return s.pick("tool", `"h"`, `"hide"`, `"keep"`, `"k"`, `"\u0068"`, `1`)
				}
				return s.value(2)
			})
		})
	})
	field := s.pick("field", "result", "result", "result", "params", "error")
	switch field {
	case "params":
		return `{"jsonrpc":"2.0","method":"notifications/x","params":` + s.value(3) + `}`
	case "error":
		return `{"jsonrpc":"2.0","id":1,"error":{"code":1,"data":` + s.value(3) + `}}`
	}
	return `{"jsonrpc":"2.0","id":1,"result":` + result + `}`
}

func TestParse_GeneratedRequestsAreReadAlike(t *testing.T) {
	t.Parallel()
	passed := 0
	rapid.Check(t, func(rt *rapid.T) {
		raw := []byte(jsonGenerator{rt}.request())
		m, err := jsonrpc.Parse(raw, jsonrpc.DefaultLimits())
		if err != nil {
			return
		}
		passed++
		if !jsontext.Value(raw).IsValid() {
			rt.Fatalf("jsontext refuses %q", raw)
		}
		sameAsStandard(t, m)
		trace := jsonrpc.Trace{Parent: jsonGenerator{rt}.pick("parent", "", "p"), State: jsonGenerator{rt}.pick("state", "", "s"), Baggage: jsonGenerator{rt}.pick("baggage", "", "b")}
		checkOutgoing(t, m, trace)
		if t.Failed() {
			rt.FailNow()
		}
	})
	if passed == 0 {
		t.Error("no drawn request passed the gate")
	}
}

func TestReadAnswer_GeneratedAnswersAreReadAlike(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		checkReadAnswer(t, []byte(jsonGenerator{rt}.answer()))
		if t.Failed() {
			rt.FailNow()
		}
	})
}
