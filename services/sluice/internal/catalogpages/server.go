package catalogpages

import (
	"fmt"
	"iter"
	"slices"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// share is how many of some tools belong to a category.
type share struct {
	*category

	Count int
	// From and Width are the place of the share in a bar that is 100 wide.
	From, Width string
}

// sharesOf counts the categories of tools, without those that none has.
func sharesOf(tools iter.Seq[*tool]) []share {
	var counts [len(categories)]int
	total := 0
	for t := range tools {
		counts[slices.Index(slugs(), categoryOf(t.GetClassification().GetCategory()).Slug)]++
		total++
	}
	var out []share
	from := 0.0
	for i, n := range counts {
		if n > 0 {
			width := 100 * float64(n) / float64(total)
			out = append(out, share{&categories[i], n, fmt.Sprintf("%.3f", from), fmt.Sprintf("%.3f", width)})
			from += width
		}
	}
	return out
}

// slugs are those of the categories, in their order.
func slugs() []string {
	out := make([]string, 0, len(categories))
	for i := range categories {
		out = append(out, categories[i].Slug)
	}
	return out
}

// Shares are the categories of a server's tools.
func (s *server) Shares() []share { return sharesOf(slices.Values(s.tools)) }

// Stem is the place of the server.
func (s *server) Stem() string { return s.stem }

// Count is how many tools the server has a page for.
func (s *server) Count() int { return len(s.tools) }

// LastListed is when the server was last listed, for people.
func (s *server) LastListed() string { return moment(s.GetListed()) }

// WaitingHex is the digest by which all that waits can be accepted.
func (s *server) WaitingHex() string { return digest(s.GetWaitingDigest()) }

// Gateway is where a gateway has the server.
func (s *server) Gateway() string { return gatewayPath(s.GetName()) }

// Pinning says in words how the server's definitions are pinned.
func (s *server) Pinning() string {
	switch s.GetPin() {
	case policyv1.PinMode_PIN_MODE_FIRST_USE:
		return "the first list is accepted, what is new waits"
	case policyv1.PinMode_PIN_MODE_OFF:
		return "off"
	case policyv1.PinMode_PIN_MODE_REVIEW, policyv1.PinMode_PIN_MODE_UNSPECIFIED:
	}
	return "every definition waits"
}

// Notices are what a reader of the server's page has to know first.
func (s *server) Notices() []notice {
	var out []notice
	if s.GetQuarantined() {
		out = append(out, notice{"stop", "The whole server is stopped", []prose{say("No tool of it can be called."), stoppedBy(s.GetQuarantinedBy(), s.GetQuarantineReason())}})
	}
	if n := s.GetWaiting(); n > 0 {
		out = append(out, notice{"care", count(int(n), "definition waits", "definitions wait") + " for a person", []prose{
			say("Their tools can't be called with them. The digest of all that wait is ", code(s.WaitingHex()), "."),
		}})
	}
	if n := s.GetUnkept(); n > 0 {
		out = append(out, notice{"care", count(int(n), "definition was", "definitions were") + " seen and not kept", []prose{
			say("Too many others wait. No tool can be called with a definition that was not kept."),
		}})
	}
	if left := s.GetLeftOut(); len(left) > 0 {
		text := say(name(left[0]))
		for _, n := range left[1:] {
			text = say(text, ", ", name(n))
		}
		out = append(out, notice{"note", count(len(left), "entry", "entries") + " of its newest list can't be used", []prose{say("The gateway left out ", text, ".")}})
	}
	return out
}
