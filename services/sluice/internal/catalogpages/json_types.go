package catalogpages

import (
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/types/known/timestamppb"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
)

type jsonServer struct {
	Name             string    `json:"name"`
	Listed           time.Time `json:"listed,omitzero"`
	Tools            int32     `json:"tools"`
	Waiting          int32     `json:"waiting"`
	WaitingDigest    string    `json:"waitingDigest,omitzero"`
	Quarantined      bool      `json:"quarantined"`
	QuarantineReason string    `json:"quarantineReason,omitzero"`
	QuarantinedBy    string    `json:"quarantinedBy,omitzero"`
	Trusted          bool      `json:"trusted"`
	LeftOut          []string  `json:"leftOut,omitempty"`
	ListFaults       []string  `json:"listFaults,omitempty"`
	Pin              string    `json:"pin"`
	Unkept           int32     `json:"unkept"`
}

func jsonServerOf(s *server) jsonServer {
	return jsonServer{
		Name: s.GetName(), Listed: instant(s.GetListed()), Tools: s.GetTools(), Waiting: s.GetWaiting(), WaitingDigest: digest(s.GetWaitingDigest()),
		Quarantined: s.GetQuarantined(), QuarantineReason: s.GetQuarantineReason(), QuarantinedBy: s.GetQuarantinedBy(), Trusted: s.GetTrusted(),
		LeftOut: s.GetLeftOut(), ListFaults: s.faults, Pin: enum.Name(s.GetPin()), Unkept: s.GetUnkept(),
	}
}

type jsonTool struct {
	Server         string              `json:"server"`
	Name           string              `json:"name"`
	Etag           string              `json:"etag,omitzero"`
	Title          string              `json:"title,omitzero"`
	Description    string              `json:"description"`
	Classification *jsonClassification `json:"classification"`
	Derived        *jsonClassification `json:"derived,omitempty"`
	Override       *jsonOverride       `json:"override,omitempty"`
	ParameterCount int32               `json:"parameterCount"`
	Required       int32               `json:"requiredParameterCount"`
	Parameters     []jsonParameter     `json:"parameters"`
	// Definition is the definition that the server sent. If the definition is not JSON, it is in DefinitionText
	// instead.
	Definition        jsontext.Value   `json:"definition,omitzero"`
	DefinitionText    string           `json:"definitionText,omitzero"`
	DefinitionDigest  string           `json:"definitionDigest,omitzero"`
	Pin               string           `json:"pin"`
	Waiting           []string         `json:"waiting,omitempty"`
	Quarantined       bool             `json:"quarantined"`
	QuarantineReason  string           `json:"quarantineReason,omitzero"`
	QuarantinedBy     string           `json:"quarantinedBy,omitzero"`
	ServerQuarantined bool             `json:"serverQuarantined"`
	ListedNow         bool             `json:"listedNow"`
	ProtocolVersions  []string         `json:"protocolVersions,omitempty"`
	Listed            time.Time        `json:"listed,omitzero"`
	History           []jsonDefinition `json:"history"`
	Advice            jsonAdvice       `json:"advice"`
	LookAlikes        []string         `json:"lookAlikes,omitempty"`
	Stopped           bool             `json:"stopped"`
}

func jsonToolOf(t *tool) jsonTool {
	out := jsonTool{
		Server: t.GetServer(), Name: t.GetName(), Etag: t.GetEtag(), Title: t.GetTitle(), Description: t.GetDescription(),
		Classification: jsonClassificationOf(t.GetClassification()), Derived: jsonClassificationOf(t.GetDerived()), Override: jsonOverrideOf(t.GetOverride()),
		ParameterCount: t.GetParameterCount(), Required: t.GetRequiredParameterCount(), DefinitionDigest: digest(t.GetDefinitionDigest()),
		Pin: enum.Name(t.GetPin()), Waiting: digests(t.GetWaiting()), Quarantined: t.GetQuarantined(), QuarantineReason: t.GetQuarantineReason(),
		QuarantinedBy: t.GetQuarantinedBy(), ServerQuarantined: t.GetServerQuarantined(), ListedNow: t.GetListedNow(), ProtocolVersions: t.GetProtocolVersions(),
		Listed: instant(t.GetListed()), Advice: jsonAdviceOf(t.GetAdvice()), LookAlikes: t.GetLookAlikes(), Stopped: t.GetStopped(),
		Parameters: []jsonParameter{}, History: []jsonDefinition{},
	}
	if definition := jsontext.Value(t.GetDefinitionJson()); definition.IsValid() {
		out.Definition = definition
	} else {
		out.DefinitionText = t.GetDefinitionJson()
	}
	for _, p := range t.GetParameters() {
		out.Parameters = append(out.Parameters, jsonParameter{p.GetName(), p.GetTypes(), p.GetRequired(), p.GetDescription()})
	}
	for _, d := range t.GetHistory() {
		out.History = append(out.History, jsonDefinition{
			Digest: digest(d.GetDefinitionDigest()), FirstSeen: instant(d.GetFirstSeen()), LastSeen: instant(d.GetLastSeen()), Pin: enum.Name(d.GetPin()),
			SettledBy: d.GetSettledBy(), Settled: instant(d.GetSettled()), Reason: d.GetReason(), ListedNow: d.GetListedNow(),
			ProtocolVersions: d.GetProtocolVersions(), SeenBy: d.GetSeenBy(), Flag: d.GetFlag(),
		})
	}
	return out
}

// jsonClassification is the classification of a tool. The values of Sensitivity, OpenWorld, Irreversibility and
// BlastRadius are named as in sluice.policy.v1.
type jsonClassification struct {
	Category          string         `json:"category"`
	Risk              string         `json:"risk"`
	Confidence        float64        `json:"confidence"`
	Evidence          []jsonEvidence `json:"evidence"`
	Sensitivity       string         `json:"sensitivity"`
	OpenWorld         string         `json:"openWorld"`
	Irreversibility   string         `json:"irreversibility"`
	BlastRadius       string         `json:"blastRadius"`
	DependsOnArgument string         `json:"dependsOnArgument,omitzero"`
	Tags              []string       `json:"tags,omitempty"`
}

type jsonEvidence struct {
	Path     string  `json:"path"`
	InKey    bool    `json:"inKey,omitzero"`
	Offset   int32   `json:"offset"`
	Quote    string  `json:"quote"`
	Meaning  string  `json:"meaning"`
	Category string  `json:"category,omitzero"`
	Weight   float64 `json:"weight"`
}

func jsonClassificationOf(c *policyv1.Classification) *jsonClassification {
	if c == nil {
		return nil
	}
	out := &jsonClassification{
		Category: enum.Name(c.GetCategory()), Risk: enum.Name(c.GetRisk()), Confidence: Rounded(c.GetConfidence()), Evidence: []jsonEvidence{},
		Sensitivity: enum.Name(c.GetSensitivity()), OpenWorld: enum.Name(c.GetOpenWorld()), Irreversibility: enum.Name(c.GetIrreversibility()),
		BlastRadius: enum.Name(c.GetBlastRadius()), DependsOnArgument: c.GetDependsOnArgument(), Tags: c.GetTags(),
	}
	for _, e := range c.GetEvidence() {
		out.Evidence = append(out.Evidence, jsonEvidence{
			Path: e.GetPath(), InKey: e.GetInKey(), Offset: e.GetOffset(), Quote: e.GetQuote(), Meaning: e.GetMeaning(),
			Category: enum.NameOrEmpty(e.GetCategory()), Weight: Rounded(e.GetWeight()),
		})
	}
	return out
}

type jsonParameter struct {
	Name        string   `json:"name"`
	Types       []string `json:"types,omitempty"`
	Required    bool     `json:"required"`
	Description string   `json:"description,omitzero"`
}

type jsonDefinition struct {
	Digest           string    `json:"definitionDigest"`
	FirstSeen        time.Time `json:"firstSeen,omitzero"`
	LastSeen         time.Time `json:"lastSeen,omitzero"`
	Pin              string    `json:"pin"`
	SettledBy        string    `json:"settledBy,omitzero"`
	Settled          time.Time `json:"settled,omitzero"`
	Reason           string    `json:"reason,omitzero"`
	ListedNow        bool      `json:"listedNow"`
	ProtocolVersions []string  `json:"protocolVersions,omitempty"`
	SeenBy           string    `json:"seenBy,omitzero"`
	Flag             string    `json:"flag,omitzero"`
}

type jsonOverride struct {
	Category         string    `json:"category,omitzero"`
	Risk             string    `json:"risk,omitzero"`
	Tags             []string  `json:"tags,omitempty"`
	Reason           string    `json:"reason"`
	Author           string    `json:"author"`
	Time             time.Time `json:"time,omitzero"`
	DefinitionDigest string    `json:"definitionDigest,omitzero"`
}

func jsonOverrideOf(o *policyv1.ToolOverride) *jsonOverride {
	if o == nil {
		return nil
	}
	return &jsonOverride{
		Category: enum.NameOrEmpty(o.GetCategory()), Risk: enum.NameOrEmpty(o.GetRisk()), Tags: o.GetTags(), Reason: o.GetReason(), Author: o.GetAuthor(),
		Time: instant(o.GetTime()), DefinitionDigest: digest(o.GetDefinitionDigest()),
	}
}

type jsonAdvice struct {
	Why             string       `json:"why"`
	Attacks         []jsonAttack `json:"attacks"`
	RecommendedRule string       `json:"recommendedRule,omitzero"`
}

type jsonAttack struct {
	ID          string   `json:"id"`
	Name        string   `json:"name"`
	Description string   `json:"description"`
	References  []string `json:"references,omitempty"`
}

func jsonAdviceOf(a *policyv1.Advice) jsonAdvice {
	out := jsonAdvice{Why: a.GetWhy(), Attacks: []jsonAttack{}, RecommendedRule: a.GetRecommendedRule()}
	for _, one := range a.GetAttacks() {
		out.Attacks = append(out.Attacks, jsonAttack{one.GetId(), one.GetName(), one.GetDescription(), one.GetReferences()})
	}
	return out
}

func instant(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}
