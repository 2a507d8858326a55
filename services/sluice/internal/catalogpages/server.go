package catalogpages

import (
	"fmt"
	"iter"
	"slices"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

type share struct {
	*category

	Count int
	// From and Width are the position and the width of the share in a bar with a width of 100.
	From, Width string
}

// sharesOf returns the number of tools in each category. It omits categories without tools.
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

func slugs() []string {
	out := make([]string, 0, len(categories))
	for i := range categories {
		out = append(out, categories[i].Slug)
	}
	return out
}

// Shares returns the number of the server's tools in each category.
func (s *server) Shares() []share { return sharesOf(slices.Values(s.tools)) }

// Stem returns the file name of the server's page, without extension.
func (s *server) Stem() string { return s.stem }

// Count returns the number of the server's tools that have a page.
func (s *server) Count() int { return len(s.tools) }

// LastListed returns the time when the server last listed its tools, or "" if the time is not known.
func (s *server) LastListed() string { return moment(s.GetListed()) }

// WaitingHex returns the hexadecimal digest of all definitions of the server's tools that wait for a person to accept
// them.
func (s *server) WaitingHex() string { return digest(s.GetWaitingDigest()) }

// Gateway returns the URL path at which a gateway offers the server.
func (s *server) Gateway() string { return gatewayPath(s.GetName()) }

// Pinning describes how the definitions of the server's tools are pinned.
func (s *server) Pinning() string {
	switch s.GetPin() {
	case policyv1.PinMode_PIN_MODE_FIRST_USE:
		return "the first list is accepted, and new definitions wait"
	case policyv1.PinMode_PIN_MODE_OFF:
		return "off"
	case policyv1.PinMode_PIN_MODE_REVIEW, policyv1.PinMode_PIN_MODE_UNSPECIFIED:
	}
	return "every definition waits"
}

// Notices returns the notices at the top of the server's page.
func (s *server) Notices() []notice {
	var out []notice
	if s.GetQuarantined() {
		out = append(out, notice{"stop", "The whole server is stopped", []prose{say("No tool of it can be called."), stoppedBy(s.GetQuarantinedBy(), s.GetQuarantineReason())}})
	}
	if n := s.GetWaiting(); n > 0 {
		out = append(out, notice{"care", count(int(n), "definition waits", "definitions wait") + " for a person", []prose{
			say("Their tools can't be called with them. The digest of all waiting definitions is ", code(s.WaitingHex()), "."),
		}})
	}
	if n := s.GetUnkept(); n > 0 {
		out = append(out, notice{"care", count(int(n), "definition was", "definitions were") + " seen but not stored", []prose{
			say("Too many others wait. No tool can be called with a definition that was not stored."),
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
