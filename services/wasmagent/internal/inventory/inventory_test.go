package inventory_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	wasmstorev1 "github.com/sluice-mesh/sluice/gen/sluice/wasmstore/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/inventory"
)

func listOf(t *testing.T, turns int, files, todos, messages []string) *inventory.Inventory {
	t.Helper()
	s := &wasmstorev1.State{Turns: int32(turns), Memory: []byte{byte(turns)}}
	for _, f := range files {
		s.Files = append(s.Files, &wasmstorev1.File{Path: f, Content: f, ModifiedAt: timestamppb.New(time.Unix(1, 2))})
	}
	for _, text := range todos {
		s.Todos = append(s.Todos, &wasmagentv1.Todo{Content: text, Status: wasmagentv1.TodoStatus_TODO_STATUS_PENDING})
	}
	for _, text := range messages {
		s.Messages = append(s.Messages, &wasmagentv1.Message{Content: text, Role: wasmagentv1.MessageRole_MESSAGE_ROLE_USER})
	}
	out, err := inventory.New(&wasmstorev1.Record{Id: "a", Turns: int32(turns)}, s)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// If each change is applied to the previous list, the result is the new list. This is true for parts that were added,
// replaced, removed or moved.
func TestApply_GivesListOfChange(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		some := func(most int, distinct bool) (out []string) {
			for i := range r.IntN(most) {
				n := r.IntN(4)
				if distinct {
					n = i*10 + r.IntN(2)
				}
				out = append(out, fmt.Sprint("x", n))
			}
			return out
		}
		var covered inventory.Covered
		var before *inventory.Inventory
		var messages []string
		for turn := range 12 {
			messages = append(messages[min(len(messages), r.IntN(3)):], some(4, false)...)
			now := listOf(t, turn, some(9, true), some(6, false), messages)
			basis := inventory.BasisPrevious
			if before == nil {
				basis = inventory.BasisCreated
			}
			text, err := now.Change(basis, before, "digest")
			if err != nil {
				t.Fatal(err)
			}
			if err := covered.Apply(text, int64(turn+2)); err != nil {
				t.Fatalf("seed %d, turn %d: %v: %s", seed, turn, err, text)
			}
			if d := covered.List.Compare(now); d != nil || !now.MatchesRecord(covered.Record) || len(covered.List.NotCovered()) > 0 {
				t.Fatalf("seed %d, turn %d: %v", seed, turn, d)
			}
			before = now
		}
	}
}

// In a long conversation, an old message is dropped for each new message. The changes in the journal stay short.
func TestChange_IsShortForLongConversation(t *testing.T) {
	t.Parallel()
	var messages []string
	for i := range 1000 {
		messages = append(messages, fmt.Sprint("message ", i))
	}
	before := listOf(t, 1, nil, nil, messages)
	now := listOf(t, 2, nil, nil, append(append([]string{messages[0]}, messages[3:]...), "question", "answer"))
	text, err := now.Change(inventory.BasisPrevious, before, "digest")
	if err != nil || len(text) > 1000 {
		t.Errorf("the change has %d bytes: %v", len(text), err)
	}
}

// A change is refused if its basis is not allowed at its position. Otherwise, an attacker could forge the store and
// hide the forgery with a change that lists all parts again.
func TestApply_RefusesChangeInWrongPosition(t *testing.T) {
	t.Parallel()
	created, found, previous := inventory.BasisCreated, inventory.BasisFound, inventory.BasisPrevious
	now := listOf(t, 1, []string{"a"}, nil, []string{"m"})
	write := func(basis inventory.Basis) []byte {
		text, err := now.Change(basis, nil, "digest")
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	for name, bases := range map[string][]inventory.Basis{
		"previous is first": {previous}, "found after created": {created, found}, "found twice": {found, found}, "created after found": {found, created}, "an unknown basis": {"other"},
	} {
		var covered inventory.Covered
		var err error
		for i, basis := range bases {
			if err = covered.Apply(write(basis), int64(2+i)); err != nil && i < len(bases)-1 {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if !errors.Is(err, inventory.ErrChange) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, text := range []string{
		"", "{}", `{"form":"sluice-agent-stored-2"}`, `{"form":"sluice-agent-stored-1","basis":"made","messages":[{"at":1}]}`,
		`{"form":"sluice-agent-stored-1","basis":"made","messages":[{"at":0,"drop":1}]}`, `{"form":"sluice-agent-stored-1","basis":"made","todos":[{"at":-1}]}`,
	} {
		if err := new(inventory.Covered).Apply([]byte(text), 2); !errors.Is(err, inventory.ErrChange) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// The inventory lists all fields of messages, files, states and todos. This test fails if a field is added to the API
// contract.
func TestNew_ListsAllFields(t *testing.T) {
	t.Parallel()
	for fields, want := range map[int]int{
		new(wasmagentv1.Message).ProtoReflect().Descriptor().Fields().Len(): 2, new(wasmstorev1.File).ProtoReflect().Descriptor().Fields().Len(): 3,
		new(wasmstorev1.State).ProtoReflect().Descriptor().Fields().Len(): 6,
	} {
		if fields != want {
			t.Errorf("the contract has %d fields, but %d are listed", fields, want)
		}
	}
	if n := new(wasmagentv1.Todo).ProtoReflect().Descriptor().Fields().Len(); n != 2 {
		t.Errorf("a todo has %d fields, but 2 are listed", n)
	}
}
