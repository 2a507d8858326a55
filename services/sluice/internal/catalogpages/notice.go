package catalogpages

import (
	"bytes"
	"slices"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

type notice struct {
	// Level is "stop" if a tool can't be called, "care" if a person should check the tool, and "note" otherwise.
	Level string
	Title string
	Text  []prose
}

// These are the tags that the catalog adds to tools with a deceptive definition.
const (
	tagSpeaks = "speaks-to-the-model"
	tagHidden = "hidden-text"
)

// noticesOf returns the notices about a tool, sorted by level.
func noticesOf(t *tool) []notice {
	var out []notice
	for _, find := range []func(*tool) *notice{
		serverStopped, toolStopped, notAccepted, otherWaits, deceives, looksAlike, waits, isUnsure, overridden, depends, notPinned, gone,
	} {
		if n := find(t); n != nil {
			out = append(out, *n)
		}
	}
	slices.SortStableFunc(out, func(a, b notice) int { return slices.Index(levels, a.Level) - slices.Index(levels, b.Level) })
	return out
}

var levels = []string{"stop", "care", "note"}

func serverStopped(t *tool) *notice {
	if !t.GetServerQuarantined() && !t.server.GetQuarantined() {
		return nil
	}
	n := &notice{"stop", "The whole server is stopped", []prose{say("No tool of ", name(t.GetServer()), " can be called.")}}
	if t.server.GetQuarantined() {
		n.Text = append(n.Text, stoppedBy(t.server.GetQuarantinedBy(), t.server.GetQuarantineReason()))
	}
	return n
}

func toolStopped(t *tool) *notice {
	if !t.GetQuarantined() {
		return nil
	}
	return &notice{"stop", "This tool is stopped", []prose{say("It can't be called with any definition."), stoppedBy(t.GetQuarantinedBy(), t.GetQuarantineReason())}}
}

// stoppedBy returns a sentence that says who stopped a tool or a server, and why.
func stoppedBy(who, why string) prose {
	out := say("The catalogue stopped it")
	if who != "" {
		out = say(name(who), " stopped it")
	}
	if why == "" {
		return say(out, " and gave no reason.")
	}
	return say(out, ": ", quote(why))
}

func notAccepted(t *tool) *notice {
	switch p := pinOf(t.GetPin()); {
	case p.Callable:
		return nil
	case p.Slug == "waiting":
		return &notice{"care", "The newest definition waits for a person", []prose{say("It is new or it has changed, and the tool can't be called with it until a person accepts it.")}}
	case p.Slug == "unknown":
		return &notice{"stop", "Nothing is known about the newest definition", []prose{say("The tool can't be called with it.")}}
	default:
		return &notice{"stop", "The newest definition is not accepted", []prose{say("It is ", quote(p.Label), ", and the tool can't be called with it.")}}
	}
}

// otherWaits returns a notice if a tool can't be called because an older definition waits for approval by a person.
// Otherwise it returns nil.
func otherWaits(t *tool) *notice {
	if !t.GetStopped() || pinOf(t.GetPin()).Slug == "waiting" {
		return nil
	}
	return &notice{"stop", "This tool can't be called now", []prose{say("Another definition of it waits for a person. Until that one is accepted or refused, the tool can't be called.")}}
}

// looksAlike returns the notice about a name that a reader could mistake for another name.
func looksAlike(t *tool) *notice {
	var others prose
	for _, other := range t.GetLookAlikes() {
		if others != nil {
			others = say(others, ", ")
		}
		others = say(others, name(other))
	}
	if others == nil {
		return nil
	}
	return &notice{"care", "Its name looks like another tool's", []prose{say("Compare it letter by letter with ", others, ".")}}
}

// deceives returns the notice about a definition that instructs the model or contains hidden text.
func deceives(t *tool) *notice {
	tags := t.GetClassification().GetTags()
	n := notice{Level: "stop", Title: "This definition is not what it seems"}
	if slices.Contains(tags, tagSpeaks) {
		n.Text = append(n.Text, say("It instructs the model to do or to hide something, instead of saying what the tool does. Read it before you allow the tool."))
	}
	if slices.Contains(tags, tagHidden) {
		n.Text = append(n.Text, say("It has invisible characters, or text in a script that differs from that of the rest. This page shows invisible characters as escapes, for example ", code(`\u202e`), "."))
	}
	if n.Text == nil {
		return nil
	}
	return &n
}

func waits(t *tool) *notice {
	switch n := len(t.GetWaiting()); {
	case n == 0, n == 1 && pinOf(t.GetPin()).Slug == "waiting" && bytes.Equal(t.GetWaiting()[0], t.GetDefinitionDigest()):
		return nil // notAccepted returns a notice about the newest definition
	default:
		return &notice{"care", count(n, "definition waits", "definitions wait") + " for a person", []prose{say("They are listed below, under “Definitions seen”.")}}
	}
}

func isUnsure(t *tool) *notice {
	c := t.GetClassification()
	if !unsure(c) {
		return nil
	}
	return &notice{"care", "It is unclear what this tool does", []prose{
		say("Its definition has evidence for several categories, or for none, so its category and risk are set to the strictest possible (confidence " + sureness(c) + "). A person can override them."),
	}}
}

// overridden returns the notice about an override. The notice contains the override's author and the catalog's own
// classification.
func overridden(t *tool) *notice {
	o := t.GetOverride()
	if o == nil {
		return nil
	}
	n := notice{Level: "note", Title: "A person has overridden the classification"}
	n.Text = append(n.Text, say(name(o.GetAuthor()), " decided"+on(o.GetTime())+": ", quote(o.GetReason())))
	if d := t.GetDerived(); d != nil {
		n.Text = append(n.Text, say("Without the override, the catalog classifies it as "+categoryOf(d.GetCategory()).Label+", of "+riskName(d.GetRisk())+" (confidence "+sureness(d)+")."))
	}
	if len(o.GetDefinitionDigest()) > 0 && !bytes.Equal(o.GetDefinitionDigest(), t.GetDefinitionDigest()) {
		n.Text = append(n.Text, say("The tool had another definition then: check whether the override is still right."))
	}
	return &n
}

// depends returns the notice about an argument that selects the effect of a call. The argument's name is untrusted.
func depends(t *tool) *notice {
	argument := t.GetClassification().GetDependsOnArgument()
	if argument == "" {
		return nil
	}
	return &notice{"note", "What it does depends on an argument", []prose{
		say("The argument ", name(argument), " selects what a call does. The category is that of the value with the strictest category. A rule can check the argument."),
	}}
}

func notPinned(t *tool) *notice {
	if t.GetPin() != policyv1.PinState_PIN_STATE_OFF {
		return nil
	}
	return &notice{"note", "Definitions of this server are not pinned", []prose{say("If the server changes the definition, the tool can still be called.")}}
}

func gone(t *tool) *notice {
	if t.GetListedNow() {
		return nil
	}
	return &notice{"note", "No list contains this tool any longer", []prose{say("The page shows its definition from when it was last listed.")}}
}
