package policy

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/policy/internal/advice"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
	"github.com/sluice-mesh/sluice/services/policy/internal/classify"
	"github.com/sluice-mesh/sluice/services/policy/internal/store"
)

// These constants limit the number of parameters, look-alike names and definitions in the response to GetTool.
// maxParameterText limits the length of a parameter's description in bytes.
const (
	maxPageParameters  = 256
	maxParameterText   = 4096
	maxPageLookAlikes  = 16
	maxPageDefinitions = 100
)

// toolRenderer converts the tools of a server to protobuf messages. Data that several tools share is read only once.
type toolRenderer struct {
	server   *catalog.Server
	settings catalog.Settings
	store    *store.Store
	// single is true if only one tool is converted. In this case, no other tool's definition is read from the store.
	single bool
	texts  map[catalog.Digest]string
	// namesBySkeleton is the result of [catalog.Server.NamesBySkeleton]. It is nil until it is needed.
	namesBySkeleton map[string][]string
}

// text returns the JSON of a definition, or "" if the store does not have it.
func (s *toolRenderer) text(ctx context.Context, d *catalog.Definition) (_ string, err error) {
	if d == nil {
		return "", nil
	}
	if s.single {
		text, err := s.store.Text(ctx, s.server.Name, d.Digest)
		if errors.Is(err, store.ErrNotStored) {
			return "", nil
		}
		return text, err
	}
	if s.texts == nil {
		if s.texts, err = s.store.Texts(ctx, s.server.Name); err != nil {
			return "", err
		}
	}
	return s.texts[d.Digest], nil
}

func (s *toolRenderer) matches(ctx context.Context, name string, req *policyv1.ListToolsRequest) (bool, error) {
	t := s.server.Tools[name]
	d := t.Newest()
	class := t.ClassWith(d)
	switch {
	case len(req.GetCategories()) > 0 && !slices.Contains(req.GetCategories(), class.Category),
		len(req.GetRisks()) > 0 && !slices.Contains(req.GetRisks(), class.Risk),
		len(req.GetPins()) > 0 && (d == nil || !slices.Contains(req.GetPins(), packState(d.State, s.settings.Mode == catalog.Off))),
		req.GetWaiting() && len(t.Waiting()) == 0:
		return false, nil
	case req.GetText() == "":
		return true, nil
	}
	text, err := s.text(ctx, d)
	wanted := strings.ToLower(req.GetText())
	_, description := describedBy(text)
	return strings.Contains(strings.ToLower(name), wanted) || strings.Contains(strings.ToLower(description), wanted), err
}

// describedBy returns the title and the description in a definition. If the definition is not valid, both are empty.
func describedBy(text string) (title, description string) {
	var in struct {
		Title       any `json:"title"`
		Description any `json:"description"`
	}
	_ = json.Unmarshal([]byte(text), &in)
	title, _ = in.Title.(string)
	description, _ = in.Description.(string)
	return title, description
}

func (s *toolRenderer) entry(ctx context.Context, name string) (*policyv1.CatalogTool, error) {
	t := s.server.Tools[name]
	if t == nil {
		return nil, catalog.UnknownTool(name)
	}
	d := t.Newest()
	text, err := s.text(ctx, d)
	if err != nil {
		return nil, err
	}
	out := &policyv1.CatalogTool{
		Server: s.server.Name, Name: name, Etag: t.Etag(), Stopped: t.StoppedByChange() && s.settings.Mode != catalog.Off,
		ServerQuarantined: s.server.Quarantine != nil, Quarantined: t.Quarantine != nil,
	}
	out.Title, out.Description = describedBy(text)
	if t.Quarantine != nil {
		out.QuarantineReason, out.QuarantinedBy = t.Quarantine.Reason, t.Quarantine.By
	}
	for _, digest := range t.Waiting() {
		if s.settings.Mode != catalog.Off {
			out.Waiting = append(out.Waiting, digest[:])
		}
	}
	if s.namesBySkeleton == nil {
		s.namesBySkeleton = s.server.NamesBySkeleton()
	}
	for _, other := range s.namesBySkeleton[catalog.Skeleton(name)] {
		if other != name && len(out.GetLookAlikes()) < maxPageLookAlikes {
			out.LookAlikes = append(out.LookAlikes, s.server.Name+"/"+other)
		}
	}
	if d != nil {
		out.DefinitionDigest, out.Pin = d.Digest[:], packState(d.State, s.settings.Mode == catalog.Off)
		out.Listed = timestamppb.New(d.LastSeen)
	}
	out.ListedNow = listedNow(s.server, t)
	for i := range t.Definitions {
		for _, version := range t.Definitions[i].WholeVersions {
			if !slices.Contains(out.GetProtocolVersions(), version) {
				out.ProtocolVersions = append(out.ProtocolVersions, version)
			}
		}
	}
	slices.Sort(out.ProtocolVersions)
	out.ParameterCount, out.RequiredParameterCount = countParameters(text)
	out.Classification = packClassification(t.ClassWith(d))
	if o := t.Override; o != nil {
		out.Override = packOverride(o)
		out.Derived = packClassification((&catalog.Tool{}).ClassWith(d))
	}
	return out, nil
}

// countParameters returns the number of parameters in a definition, and the number of required parameters. Both are
// zero if the definition is not valid.
func countParameters(text string) (all, required int32) {
	tool, err := classify.Read([]byte(text))
	if err != nil {
		return 0, 0
	}
	for i := range tool.Parameters {
		if tool.Parameters[i].Required {
			required++
		}
	}
	return int32(len(tool.Parameters)), required
}

func (s *toolRenderer) page(ctx context.Context, name string) (*policyv1.CatalogTool, error) {
	out, err := s.entry(ctx, name)
	if err != nil {
		return nil, err
	}
	t := s.server.Tools[name]
	d := t.Newest()
	if out.DefinitionJson, err = s.text(ctx, d); err != nil {
		return nil, err
	}
	if tool, err := classify.Read([]byte(out.GetDefinitionJson())); err == nil {
		for _, p := range tool.Parameters[:min(len(tool.Parameters), maxPageParameters)] {
			out.Parameters = append(out.Parameters, &policyv1.ToolParameter{
				Name: p.Name, Types: p.Types, Required: p.Required, Description: truncate(p.Description, maxParameterText),
			})
		}
		derived := classify.Classify(tool, s.settings.Trusted)
		effective := proto.CloneOf(derived)
		if t.Override != nil {
			class := t.ClassWith(d)
			effective.Category, effective.Risk, effective.Tags, effective.Confidence = class.Category, class.Risk, class.Tags, 1 // an operator's classification has the confidence 1
			out.Derived = derived
		}
		out.Classification = effective
	}
	for i := len(t.Definitions) - 1; i >= 0 && len(out.GetHistory()) < maxPageDefinitions; i-- {
		out.History = append(out.History, packDefinition(&t.Definitions[i], s.settings, t.Definitions[i].Flag(name, s.namesBySkeleton)))
	}
	out.Advice = advice.For(s.server.Name, name, out.GetClassification())
	return out, nil
}

// digestOf converts the digest in a request. The validation of requests ensures that it has 32 bytes.
func digestOf(text []byte) (d catalog.Digest) {
	copy(d[:], text)
	return d
}

// truncate shortens a string to at most limit bytes without splitting a character.
func truncate(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "")
}

func packClassification(c catalog.Class) *policyv1.Classification {
	return &policyv1.Classification{Category: c.Category, Risk: c.Risk, Confidence: c.Confidence, Tags: c.Tags}
}

func packOverride(o *catalog.Override) *policyv1.ToolOverride {
	return &policyv1.ToolOverride{
		Category: o.Category, Risk: o.Risk, Tags: o.Tags, Reason: o.Reason, Author: o.Author, Time: timestamppb.New(o.Time), DefinitionDigest: o.Digest[:],
	}
}

func packDefinition(d *catalog.Definition, settings catalog.Settings, flag string) *policyv1.SeenDefinition {
	out := &policyv1.SeenDefinition{
		DefinitionDigest: d.Digest[:], FirstSeen: timestamppb.New(d.FirstSeen), LastSeen: timestamppb.New(d.LastSeen), Pin: packState(d.State, settings.Mode == catalog.Off),
		SettledBy: d.DecidedBy, Reason: d.Reason, ListedNow: len(d.WholeVersions) > 0, ProtocolVersions: d.Versions, SeenBy: d.ListedTo,
		Flag: flag,
	}
	if !d.DecidedAt.IsZero() {
		out.Settled = timestamppb.New(d.DecidedAt)
	}
	return out
}

func packState(state catalog.State, off bool) policyv1.PinState {
	switch {
	case off:
		return policyv1.PinState_PIN_STATE_OFF
	case state == catalog.Accepted:
		return policyv1.PinState_PIN_STATE_ACCEPTED
	case state == catalog.Refused:
		return policyv1.PinState_PIN_STATE_REFUSED
	default:
		return policyv1.PinState_PIN_STATE_QUARANTINED
	}
}

var pinModes = map[catalog.Mode]policyv1.PinMode{
	catalog.FirstUse: policyv1.PinMode_PIN_MODE_FIRST_USE, catalog.Review: policyv1.PinMode_PIN_MODE_REVIEW, catalog.Off: policyv1.PinMode_PIN_MODE_OFF,
}

// newest returns the time of the newest complete list that a gateway reported, or the zero time if there is no such
// list.
func newest(lists map[string]time.Time) (last time.Time) {
	for _, at := range lists {
		if at.After(last) {
			last = at
		}
	}
	return last
}

func packServer(s *catalog.Server, settings catalog.Settings) *policyv1.CatalogServer {
	out := &policyv1.CatalogServer{
		Name: s.Name, Trusted: settings.Trusted, LeftOut: s.LeftOut, Pin: pinModes[settings.Mode], Unkept: int32(s.NotStored), Quarantined: s.Quarantine != nil,
	}
	if s.Quarantine != nil {
		out.QuarantineReason, out.QuarantinedBy = s.Quarantine.Reason, s.Quarantine.By
	}
	if at := newest(s.Lists); !at.IsZero() {
		out.Listed = timestamppb.New(at)
	}
	for _, t := range s.Tools {
		if slices.ContainsFunc(t.Definitions, func(d catalog.Definition) bool { return len(d.WholeVersions) > 0 }) {
			out.Tools++
		}
	}
	if settings.Mode != catalog.Off {
		out.Waiting, out.WaitingDigest = int32(len(s.Waiting())), s.WaitingDigest()
	}
	return out
}
