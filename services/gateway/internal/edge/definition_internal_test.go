package edge

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"testing"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
)

func listOf(tb testing.TB, tools string) *gate.Answer {
	tb.Helper()
	a, err := gate.ReadAnswer([]byte(`{"jsonrpc":"2.0","id":1,"result":{"tools":`+tools+`}}`), gate.AnswerLimits())
	if err != nil {
		tb.Fatal(err)
	}
	return a
}

// known are the digests of a list.
func known(t *testing.T, d definitions, answer *gate.Answer) map[string][]byte {
	t.Helper()
	got, err := d.of(t.Context(), answer)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// What a list says is known by its bytes: the same list is not digested again, and
// another one never taken for it.
func TestDefinitionsAreKnownByTheirList(t *testing.T) {
	t.Parallel()
	d := newDefinitions()
	want := sha256.Sum256([]byte(`{"name":"a"}`))
	first := known(t, d, listOf(t, `[{"name":"a"}]`))
	if !bytes.Equal(first["a"], want[:]) {
		t.Errorf("a is %x", first["a"])
	}
	if again := known(t, d, listOf(t, `[{"name":"a"}]`)); d.values.Len() != 1 || &again["a"][0] != &first["a"][0] {
		t.Error("the same list was digested again")
	}
	if other := known(t, d, listOf(t, `[{"name":"a","title":"x"}]`)); bytes.Equal(other["a"], first["a"]) {
		t.Error("another definition has the same digest")
	}
	for i := range 3 * maxLists {
		known(t, d, listOf(t, fmt.Sprintf(`[{"name":"a","title":"%d"}]`, i)))
	}
	if d.values.Len() > maxLists {
		t.Errorf("%d lists are kept", d.values.Len())
	}
	if again := known(t, d, listOf(t, `[{"name":"a"}]`)); !bytes.Equal(again["a"], want[:]) {
		t.Errorf("later a is %x", again["a"])
	}
}

// X1: who lists something new each time pushes out what is oldest, and not all that others
// use.
func TestX1ANewListPushesOutTheOldest(t *testing.T) {
	t.Parallel()
	d := newDefinitions()
	list := func(i int) *gate.Answer { return listOf(t, fmt.Sprintf(`[{"name":"a","title":"%d"}]`, i)) }
	used := known(t, d, list(0))
	for i := range 3 * maxLists {
		known(t, d, list(i+1))
		if again := known(t, d, list(0)); &again["a"][0] != &used["a"][0] {
			t.Fatalf("%d other lists pushed out one that is used", i+1)
		}
	}
}

// What a server lists fills no memory: neither many long lists nor long names.
func TestWhatIsKnownOfListsIsBounded(t *testing.T) {
	t.Parallel()
	d := newDefinitions()
	kept := func() (n int) {
		for _, list := range d.values.Values() {
			n += len(list)
		}
		return n
	}
	long := func(first, tools int) *gate.Answer {
		var out bytes.Buffer
		for i := range tools {
			fmt.Fprintf(&out, `,{"name":"t%d"}`, first+i)
		}
		return listOf(t, "["+out.String()[1:]+"]")
	}
	const tools = 10_000 // the gate lets no more through
	for i := range 12 {
		if got := known(t, d, long(i*tools, tools)); len(got) != tools || kept() < tools || kept() > maxKept {
			t.Fatalf("list %d: %d digests, %d kept", i, len(got), kept())
		}
	}
	if got := known(t, d, listOf(t, fmt.Sprintf(`[{"name":"a"},{"name":%q}]`, bytes.Repeat([]byte("b"), maxToolName+1)))); len(got) != 1 || got["a"] == nil {
		t.Errorf("a name that is too long is kept: %d digests", len(got))
	}
}

// BenchmarkDefinitions is what a list of 350 tools costs on its way to a client, the
// first time and every other.
func BenchmarkDefinitions(b *testing.B) {
	var tools bytes.Buffer
	for i := range 350 {
		fmt.Fprintf(&tools, `,{"name":"tool_%d","description":%q,"inputSchema":{"type":"object","properties":{"a":{"type":"string","description":%q},"b":{"type":"number"}},"required":["a"]}}`,
			i, bytes.Repeat([]byte("does it "), 40), bytes.Repeat([]byte("what "), 20))
	}
	answer := listOf(b, "["+tools.String()[1:]+"]")
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			newDefinitions().of(b.Context(), answer)
		}
	})
	b.Run("known", func(b *testing.B) {
		d := newDefinitions()
		d.of(b.Context(), answer)
		for b.Loop() {
			d.of(b.Context(), answer)
		}
	})
}

// runsOut is a context that ends when it has been asked about so often.
type runsOut struct {
	context.Context
	left int
}

func (c *runsOut) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// X1: the definitions of a list are read for as long as somebody waits for them.
func TestX1DefinitionsEndWithTheirCaller(t *testing.T) {
	t.Parallel()
	d := newDefinitions()
	list := listOf(t, `[{"name":"a"},{"name":"b"},{"name":"c"}]`)
	if got, err := d.of(&runsOut{t.Context(), 2}, list); !errors.Is(err, context.Canceled) || d.values.Len() != 0 {
		t.Errorf("definitions of a list whose caller left: %v, %v", got, err)
	}
	if got := known(t, d, list); len(got) != 3 {
		t.Errorf("and those of the next one: %d", len(got))
	}
}
