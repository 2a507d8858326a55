package catalogpages

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/types/known/timestamppb"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
)

// sure is the confidence from which the answer is not the strictest of several.
const sure = 0.5

// Bounds of what a page shows whole.
const (
	// maxDefinition is how much of the raw definition is shown, in characters.
	maxDefinition = 64 << 10
	// maxLede is how much of a description stands at the top of its page, in characters.
	maxLede = 1200
	// maxHeading is how much of a name stands in headings and titles, in characters.
	maxHeading = 64
)

// view is what the page of a tool shows, in the order in which it does.
type view struct {
	*tool

	// Lede is the description, and Rest what does not fit at the top of the page.
	Lede, Rest string
	Category   *category
	Risk       *risk
	// Sure is the confidence in words, and Percent as a number.
	Sure       string
	Percent    int
	Degrees    []degree
	Pin        *pin
	Notices    []notice
	Does       prose
	Why        []prose
	Evidence   []evidence
	Attacks    []*policyv1.Attack
	Questions  []question
	History    []definition
	Definition string
	// Cut tells that not the whole definition is shown.
	Cut bool
}

// viewOf is what the page of a tool shows.
func viewOf(t *tool) *view {
	c := t.GetClassification()
	v := &view{
		tool: t, Category: categoryOf(c.GetCategory()), Risk: riskOf(c.GetRisk()), Percent: percent(c.GetConfidence()), Sure: sureness(c),
		Degrees: degreesOf(c), Pin: pinOf(t.GetPin()), Notices: noticesOf(t), Attacks: t.GetAdvice().GetAttacks(), Evidence: evidenceOf(c.GetEvidence()),
		History: historyOf(t),
	}
	v.Lede, v.Rest = t.GetDescription(), ""
	if begin, more := cut(v.Lede, maxLede); more {
		v.Lede, v.Rest = begin, v.Lede[len(begin):]
	}
	v.Does = v.Category.does(t.headName(), name(t.GetServer()))
	if v.Why = paragraphs(t.GetAdvice().GetWhy()); len(v.Why) == 0 {
		v.Why = []prose{say(v.Category.Why)}
	}
	v.Definition, v.Cut = cut(indented(t.GetDefinitionJson()), maxDefinition)
	v.Questions = questionsOf(v)
	return v
}

// headName is a tool's name where it has to be short.
func (t *tool) headName() name { return name(short(t.GetName(), maxHeading)) }

// Title is the title of a tool for people, where it says more than the name.
func (t *tool) Title() string {
	if title := strings.TrimSpace(t.GetTitle()); !strings.EqualFold(title, t.GetName()) {
		return title
	}
	return ""
}

// ServerStem is the place of the tool's server.
func (t *tool) ServerStem() string { return t.of.stem }

// LastListed is when the tool was last listed, for people.
func (t *tool) LastListed() string { return moment(t.GetListed()) }

// Stem is the place of the tool below its server.
func (t *tool) Stem() string { return t.stem }

// unsure reports whether the answer is the strictest of several.
func unsure(c *policyv1.Classification) bool { return c.GetConfidence() < sure }

func percent(confidence float64) int { return int(100*min(max(confidence, 0), 1) + 0.5) }

// sureness is a confidence in words, to two places: more would look like more is known.
func sureness(c *policyv1.Classification) string {
	word := "sure"
	if unsure(c) {
		word = "unsure"
	}
	return fmt.Sprintf("%.2f, %s", c.GetConfidence(), word)
}

// pin is what pages say of the state of a definition.
type pin struct {
	Slug, Label string
	// Callable reports whether a tool can be called with such a definition.
	Callable bool
}

// pinOf is what is said of a state, by its name: one that this version does not know lets nothing through.
func pinOf(s policyv1.PinState) *pin {
	switch slug := enum.Name(s); slug {
	case "off":
		return &pin{slug, "not pinned", true}
	case "accepted":
		return &pin{slug, "accepted", true}
	case "quarantined":
		return &pin{"waiting", "waits for a person", false}
	case "unspecified":
		return &pin{"unknown", "not known", false}
	default:
		return &pin{"stopped", strings.ReplaceAll(slug, "_", " "), false}
	}
}

// evidence is a piece of a definition and what it says.
type evidence struct {
	Quote, Meaning string
	// Place says where it stands, Pointer the same for programs.
	Place   prose
	Pointer string
	Offset  int32
	// For is the category that it speaks for; nil where it speaks for a degree.
	For     *category
	Weight  string
	Percent int
}

func evidenceOf(all []*policyv1.Evidence) []evidence {
	var out []evidence
	for _, e := range all {
		one := evidence{
			Quote: e.GetQuote(), Meaning: e.GetMeaning(), Place: placeOf(e), Pointer: e.GetPath(), Offset: e.GetOffset(),
			Weight: fmt.Sprintf("%.2f", e.GetWeight()), Percent: percent(e.GetWeight()),
		}
		if e.GetCategory() != 0 {
			one.For = categoryOf(e.GetCategory())
		}
		out = append(out, one)
	}
	return out
}

// placeOf says in words where evidence stands.
func placeOf(e *policyv1.Evidence) prose {
	var steps []string
	for token := range jsontext.Pointer(e.GetPath()).Tokens() {
		steps = append(steps, token)
	}
	switch parameter := len(steps) > 2 && steps[0] == "inputSchema" && steps[1] == "properties"; {
	case len(steps) == 1 && !e.GetInKey():
		return say("in its ", quote(steps[0]))
	case parameter && len(steps) == 3 && e.GetInKey():
		return say("in the name of the parameter ", name(steps[2]))
	case parameter && len(steps) == 4 && !e.GetInKey():
		return say("in the ", quote(steps[3]), " of the parameter ", name(steps[2]))
	case len(steps) == 2 && steps[0] == "annotations":
		return say("in the server's hint ", name(steps[1]))
	case e.GetInKey():
		return say("in the key at ", code(e.GetPath()))
	default:
		return say("at ", code(e.GetPath()))
	}
}

// definition is one that was seen.
type definition struct {
	Digest      string
	Pin         *pin
	First, Last string
	// Settled says who decided on it, when, and why; nil where nobody did.
	Settled prose
	// Reason is why nobody did, as the catalogue says; it may be empty.
	Reason string
	// Now reports whether a list has it now, Newest whether it is the one that the page shows.
	Now, Newest bool
	Versions    string
	// SeenBy is to whom it was listed first, where that was not the gateway itself.
	SeenBy string
}

// historyOf are the definitions of a tool that were seen.
func historyOf(t *tool) []definition {
	var out []definition
	for _, d := range t.GetHistory() {
		out = append(out, definition{
			Digest: digest(d.GetDefinitionDigest()), Pin: pinOf(d.GetPin()), First: moment(d.GetFirstSeen()), Last: moment(d.GetLastSeen()),
			Settled: settledOf(d), Reason: d.GetReason(), Now: d.GetListedNow(), Newest: bytes.Equal(d.GetDefinitionDigest(), t.GetDefinitionDigest()),
			Versions: strings.Join(d.GetProtocolVersions(), ", "), SeenBy: d.GetSeenBy(),
		})
	}
	return out
}

// settledOf says who accepted or refused a definition, when, and why; nil where nobody did.
func settledOf(d *policyv1.SeenDefinition) prose {
	var out prose
	switch {
	case d.GetSettledBy() != "":
		out = say("by ", name(d.GetSettledBy()), on(d.GetSettled()))
	case d.GetSettled() != nil:
		out = say("by the catalogue", on(d.GetSettled()))
	default:
		return nil
	}
	if d.GetReason() != "" {
		out = say(out, ": ", quote(d.GetReason()))
	}
	return out
}

// moment is a time for people, in UTC; empty where there is none.
func moment(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return clock(t.AsTime())
}

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }

// on is " on TIME", to stand in a sentence; empty where there is no time.
func on(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return " on " + moment(t)
}

// indented is a definition with its own words and our white space.
func indented(definition string) string {
	v := jsontext.Value(definition)
	if err := v.Indent(jsontext.WithIndent("  ")); err != nil {
		return definition // what is no JSON is shown as it is
	}
	return string(v)
}
