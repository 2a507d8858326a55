package engine

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/sluice-mesh/sluice/services/internal/detect"
	"github.com/sluice-mesh/sluice/services/internal/mcpmethod"
	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
	"github.com/sluice-mesh/sluice/services/internal/valuepath"
)

// A Redaction replaces values in results or arguments before the client or the server receives them. It has either a
// Path or a Detector.
type Redaction struct {
	// Target says whether values in results or in arguments are replaced.
	Target RedactionTarget
	// Path selects values. Package valuepath describes its syntax.
	Path string
	// Detector is the name of a detector in package detect.
	Detector string
}

// String describes the redaction, for example "results: email" or "arguments: /user/email".
func (r Redaction) String() string { return r.Target.String() + ": " + cmp.Or(r.Path, r.Detector) }

// RedactionTarget says whether a redaction replaces values in results or in arguments.
type RedactionTarget uint8

// These are the targets.
const (
	// RedactResults replaces values in the messages from the server, before the client receives them.
	RedactResults RedactionTarget = iota
	// RedactArguments replaces values in the arguments, before approvers see them and the server receives them.
	RedactArguments
)

// String returns the name of the target in documents.
func (t RedactionTarget) String() string {
	return nameOf([]string{"results", "arguments"}, int(t), "RedactionTarget")
}

// A RuleRedaction is a redaction that applies to a call, and the first rule that specifies the redaction.
type RuleRedaction struct {
	Rule RuleRef
	Redaction
}

// redactions returns the redactions in the rules that apply to a principal of the call, without duplicates. All given
// rules must match the call.
func (c *Call) redactions(rules []*rule) (out []RuleRedaction) {
	for _, r := range rules {
		if len(r.Redactions) == 0 || !c.limitsAny(r) {
			continue
		}
		for _, one := range r.Redactions {
			if !slices.ContainsFunc(out, func(o RuleRedaction) bool { return o.Redaction == one }) {
				out = append(out, RuleRedaction{r.ref, one})
			}
		}
	}
	return out
}

// limitsAny reports whether a rule's limits apply to a principal of the call. Other parts of the rule, such as its
// timeout and redactions, apply in the same cases.
func (c *Call) limitsAny(r *rule) bool {
	for i := range c.Subject.size() {
		if c.limits(r, i) {
			return true
		}
	}
	return false
}

func redactionTexts(list []Redaction) []string {
	out := make([]string, len(list))
	for i := range list {
		out[i] = list[i].String()
	}
	return out
}

// alikeRedactions reports whether two decisions have the same redactions.
func alikeRedactions(a, b *Decision) bool {
	texts := func(d *Decision) []string {
		var out []string
		for _, r := range d.Redactions {
			out = append(out, r.String())
		}
		slices.Sort(out)
		return out
	}
	return slices.Equal(texts(a), texts(b))
}

// checkRedactions checks the redactions of a rule.
func (c *checker) checkRedactions(r *Rule) {
	if len(r.Redactions) == 0 {
		return
	}
	if len(r.Redactions) > MaxRuleRedactions {
		c.add("redact", fmt.Sprintf("has more than %d paths and detectors", MaxRuleRedactions), "use fewer, or another rule")
	}
	if r.Action == ActionDeny || r.Action == ActionHide {
		c.add("redact", "has no effect: the rule refuses all calls", "remove it")
		return
	}
	tools, _ := r.Match.scope()
	for i, one := range r.Redactions {
		if slices.Contains(r.Redactions[:i], one) {
			c.add("redact."+one.Target.String(), fmt.Sprintf("lists %q twice", cmp.Or(one.Path, one.Detector)), "remove one of them")
		}
		c.checkRedaction(one)
		if one.Target == RedactArguments && !tools {
			c.add("redact.arguments", "has no effect: the rule does not match tools/call", "remove it, or match tools")
		}
	}
	if !tools && onlyNotifications(&r.Match) {
		c.add("redact", "has no effect: the rule matches only notifications that are sent outside of calls", "match the methods or tools of the calls")
	}
}

func (c *checker) checkRedaction(one Redaction) {
	if one.Path == "" {
		if _, err := detect.NewSet(one.Detector); err != nil {
			c.add("redact."+one.Target.String()+".detect", fmt.Sprintf("unknown detector %q", one.Detector), strictyaml.Suggest(one.Detector, detect.Names()))
		}
		return
	}
	if _, err := valuepath.Parse(one.Path); err != nil {
		c.add("redact."+one.Target.String()+".paths", fmt.Sprintf("the path %q %v", one.Path, err),
			"write a JSON Pointer, for example /user/email or /items/*/token")
	}
}

// onlyNotifications reports whether m matches only notifications.
func onlyNotifications(m *Match) bool {
	return len(m.Method) > 0 && !slices.ContainsFunc(m.Method, func(method string) bool { return !mcpmethod.IsNotification(method) })
}
