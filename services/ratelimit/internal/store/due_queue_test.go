package store

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

type member struct {
	slot
	due time.Duration
}

func TestDueQueue_ReturnsMembersInOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var a dueQueue[*member]
		var members []*member
		pick := func() int { return rapid.IntRange(0, len(members)-1).Draw(t, "member") }
		due := func() time.Duration { return time.Duration(rapid.IntRange(0, 20).Draw(t, "due")) }
		t.Repeat(map[string]func(*rapid.T){
			"add": func(*rapid.T) {
				m := &member{due: due()}
				members = append(members, m)
				a.add(m, m.due)
			},
			"move": func(t *rapid.T) {
				if len(members) == 0 {
					t.Skip("empty")
				}
				m := members[pick()]
				m.due = due()
				a.move(m, m.due)
			},
			"remove": func(t *rapid.T) {
				if len(members) == 0 {
					t.Skip("empty")
				}
				i := pick()
				a.remove(members[i])
				members = slices.Delete(members, i, i+1)
			},
			"": func(t *rapid.T) {
				if len(a.heap) != len(members) {
					t.Fatalf("%d members, want %d", len(a.heap), len(members))
				}
				for _, m := range members {
					if got := a.dueOf(m); got != m.due || a.heap[m.index].member != m {
						t.Fatalf("a member is due at %d, want %d", got, m.due)
					}
				}
				if len(members) == 0 {
					if a.isDue(1 << 62) {
						t.Fatal("no member is due")
					}
					return
				}
				first := slices.MinFunc(members, func(x, y *member) int { return int(x.due - y.due) }).due
				if a.dueOf(a.next()) != first || a.isDue(first-1) || !a.isDue(first) {
					t.Fatalf("next is due at %d, want %d", a.dueOf(a.next()), first)
				}
			},
		})
	})
}
