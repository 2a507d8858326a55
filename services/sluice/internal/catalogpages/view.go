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

// sure is the minimum confidence of a classification that the evidence supports. With a lower confidence, the
// classification is the strictest of several possible classifications.
const sure = 0.5

const (
	// maxDefinition is the maximum number of characters of the raw definition that a page shows.
	maxDefinition = 64 << 10
	// maxLede is the maximum number of characters in a description at the top of a page.
	maxLede = 1200
	// maxHeading is the maximum number of characters of a name in headings and titles.
	maxHeading = 64
)

// view is the content of a tool's page, in the order of the page.
type view struct {
	*tool

	// Lede is the description at the top of the page. Rest is the part of the description that does not fit there.
	Lede, Rest string
	Category   *category
	Risk       *risk
	// Sure is the confidence in words, and Percent is the confidence in percent.
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
	// Cut is true if the definition is longer than Definition.
	Cut bool
}

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

func (t *tool) headName() name { return name(short(t.GetName(), maxHeading)) }

// Title returns the title of a tool, or "" if the title equals the name.
func (t *tool) Title() string {
	if title := strings.TrimSpace(t.GetTitle()); !strings.EqualFold(title, t.GetName()) {
		return title
	}
	return ""
}

// ServerStem returns the file name of the page of the tool's server, without extension.
func (t *tool) ServerStem() string { return t.server.stem }

// LastListed returns the time when the tool was last listed, or "" if the time is not known.
func (t *tool) LastListed() string { return moment(t.GetListed()) }

// Stem returns the file name of the tool's page in the directory of its server, without extension.
func (t *tool) Stem() string { return t.stem }

// unsure reports whether a classification is the strictest of several possible classifications.
func unsure(c *policyv1.Classification) bool { return c.GetConfidence() < sure }

func percent(confidence float64) int { return int(100*min(max(confidence, 0), 1) + 0.5) }

// sureness describes a confidence with two decimal places. More places would suggest a higher precision than the
// confidence has.
func sureness(c *policyv1.Classification) string {
	word := "sure"
	if unsure(c) {
		word = "unsure"
	}
	return fmt.Sprintf("%.2f, %s", c.GetConfidence(), word)
}

type pin struct {
	Slug, Label string
	// Callable is true if a tool can be called while its definition is in this pin state.
	Callable bool
}

// pinOf returns the description of a pin state. If this version does not know the state, calls are not permitted.
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

// evidence is a quote from a definition, and the conclusion from this quote.
type evidence struct {
	Quote, Meaning string
	// Place describes the location of the quote. Pointer is the JSON Pointer of the string that contains the quote, and
	// Offset is the offset of the quote in that string, in bytes.
	Place   prose
	Pointer string
	Offset  int32
	// For is the category that the evidence supports. It is nil if the evidence supports another part of the
	// classification, such as the sensitivity.
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

type definition struct {
	Digest      string
	Pin         *pin
	First, Last string
	// Settled describes who made the decision on the definition, when, and why. It is nil if there is no decision.
	Settled prose
	// Reason is the catalog's reason for the pin state if there is no decision. It may be empty.
	Reason string
	// Now is true if the server currently lists this definition. Newest is true if the page shows this definition.
	Now, Newest bool
	Versions    string
	// SeenBy is the principal to whom the server first listed the definition. It is empty if the server listed the
	// definition to the gateway itself.
	SeenBy string
}

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

// settledOf describes who made the decision on a definition, when, and why. It returns nil if there is no decision.
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

// moment formats a time in UTC, or returns "" for nil.
func moment(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return clock(t.AsTime())
}

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }

// on returns " on TIME", for a sentence, or "" for nil.
func on(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return " on " + moment(t)
}

func indented(definition string) string {
	v := jsontext.Value(definition)
	if err := v.Indent(jsontext.WithIndent("  ")); err != nil {
		return definition // the definition is not JSON
	}
	return string(v)
}
