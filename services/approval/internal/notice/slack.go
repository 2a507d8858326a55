package notice

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/slack-go/slack"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/store"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

// Slack configures a channel in Slack. If a message shows the whole view of a call, it has buttons to approve and to
// deny the call. Sluice connects to Slack by Socket Mode, so Slack needs no network access to Sluice.
type Slack struct {
	// Target must have a tenant and must not be an escalation. Button presses count as votes in this tenant.
	Target
	// AppToken (`xapp-…`, connections:write) and BotToken (`xoxb-…`, chat:write) are the tokens of the Slack app.
	AppToken, BotToken config.Secret
	// Channel is the id of the channel, such as C0123456789. The app must be a member of it.
	Channel string
	// People maps the ids of Slack users to subjects. Button presses by other users don't count. If People is empty,
	// messages have no buttons.
	People map[string]string
	// API is the URL of Slack's Web API. It is empty except in tests.
	API string
}

var channelIDs = regexp.MustCompile(`^[CG][A-Z0-9]{1,31}$`)

func (s *Slack) target() Target { return s.Target }

func (s *Slack) validate() error {
	errs := []error{s.Target.validate()}
	if s.Tenant == "" || s.After != 0 {
		errs = append(errs, fmt.Errorf("notices: %s: for Slack, set tenant to the tenant in which people vote, and remove after", s.Name))
	}
	if !strings.HasPrefix(string(s.AppToken), "xapp-") || !strings.HasPrefix(string(s.BotToken), "xoxb-") {
		errs = append(errs, fmt.Errorf("notices: %s: Slack needs an app token, `xapp-…`, and a bot token, `xoxb-…`", s.Name))
	}
	if !channelIDs.MatchString(s.Channel) {
		errs = append(errs, fmt.Errorf("notices: %s: channel must be a channel's id, such as C0123456789, is %q", s.Name, s.Channel))
	}
	for user, subject := range s.People {
		if user == "" || subject == "" {
			errs = append(errs, fmt.Errorf("notices: %s: people maps ids of Slack users to subjects, and neither may be empty", s.Name))
		}
	}
	return errors.Join(errs...)
}

func (s *Slack) open(deps Deps) (Channel, error) {
	return &slackChannel{Slack: s, deps: deps, api: slack.New(string(s.BotToken), slack.OptionAppLevelToken(string(s.AppToken)),
		slack.OptionAPIURL(cmp.Or(s.API, slack.APIURL)), slack.OptionHTTPClient(&http.Client{Timeout: sendTimeout}))}, nil
}

type slackChannel struct {
	*Slack
	deps Deps
	api  *slack.Client
}

// maxText is the maximum length of the text in a section, in bytes. Slack limits the number of characters, which never
// exceeds the number of bytes.
const maxText = 3000

// Send implements Channel. The receipt is the timestamp of the message. When approvers are asked again, when the call
// is approved, and when the approval ends, Send changes the messages of earlier notices. Their receipts identify these
// messages.
func (c *slackChannel) Send(ctx context.Context, m *Message) (string, error) {
	line := describeCall(m.Approval) + ": " + statusText(m)
	for _, ts := range m.Receipts {
		_, _, _, err := c.api.UpdateMessageContext(ctx, c.Channel, ts, slack.MsgOptionText(line, true), slack.MsgOptionBlocks(textSection(line)))
		if err != nil && err.Error() != "message_not_found" { // message_not_found means that a person has deleted the message
			return "", fmt.Errorf("change a message: %w", withoutURL(err))
		}
	}
	if m.View == nil {
		if len(m.Receipts) == 0 {
			return "", ErrObsolete
		}
		return "", nil
	}
	_, ts, err := c.api.PostMessageContext(ctx, c.Channel, slack.MsgOptionText(describeCall(m.Approval)+": a person must decide", true), slack.MsgOptionBlocks(c.questionBlocks(m.View)...))
	if err != nil {
		return "", fmt.Errorf("post a message: %w", withoutURL(err))
	}
	return ts, nil
}

func describeCall(a *approvalv1.Approval) string {
	return safetext.Escape(fmt.Sprintf("%s, requested by %s", safetext.CallName(a.GetServer(), a.GetMethod(), a.GetName()), a.GetRequester().GetSubject()))
}

// statusText returns the text that replaces the content of an earlier message.
func statusText(m *Message) string {
	if m.Kind == store.Pending {
		return "people are asked again; see the newer message"
	}
	reason := safetext.Escape(m.Approval.GetReason())
	if reason == "" || strings.HasPrefix(reason, m.Kind) {
		return cmp.Or(reason, m.Kind)
	}
	return m.Kind + ", " + reason
}

// questionBlocks returns the blocks of a message that asks for a vote. If the message shows the whole view and c.People
// is not empty, the message has buttons. Otherwise it shows the commands to approve or deny the call. If the terms have
// approve_with, the message has no buttons, because pressing a button does not meet this requirement.
func (c *slackChannel) questionBlocks(v *approvalv1.View) []slack.Block {
	seen, params := preformatted(safetext.Facts(v)), preformatted(v.GetParams())
	if len(c.People) == 0 || v.GetTerms().GetApproveWith() != nil || len(v.GetDigest()) == 0 || len(seen) > maxText || len(params) > maxText {
		seen := preformatted(factsText(v))
		if len(seen) > maxText {
			seen = preformatted("The facts are too long for this message.\n")
		}
		return []slack.Block{section(seen), section(preformatted(commandsText(v)))}
	}
	value := v.GetApprovalId() + " " + hex.EncodeToString(v.GetDigest())
	return []slack.Block{
		section(seen), section(params),
		slack.NewActionBlock("decide",
			slack.NewButtonBlockElement(approveButton, value, plainText("Approve")).WithStyle(slack.StylePrimary),
			slack.NewButtonBlockElement(denyButton, value, plainText("Deny")).WithStyle(slack.StyleDanger)),
	}
}

// preformatted returns text as a preformatted block. It escapes markup and also backticks, because backticks would end
// the block.
func preformatted(text string) string {
	return "```\n" + strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "`", `\u0060`).Replace(strings.TrimSuffix(text, "\n")) + "\n```"
}

// section returns a section that Slack does not collapse, so that the approver sees all of it.
func section(text string) slack.Block {
	return slack.NewSectionBlock(slack.NewTextBlockObject(slack.MarkdownType, text, false, true), nil, nil, slack.SectionBlockOptionExpand(true))
}

func textSection(line string) slack.Block {
	if len(line) > maxText {
		line = strings.ToValidUTF8(line[:maxText], "")
	}
	return slack.NewSectionBlock(plainText(line), nil, nil)
}

func plainText(text string) *slack.TextBlockObject {
	return slack.NewTextBlockObject(slack.PlainTextType, text, false, false)
}
