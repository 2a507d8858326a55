package notice

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	netmail "net/mail"
	"os"
	"strconv"

	"github.com/wneessen/go-mail"
	"google.golang.org/protobuf/proto"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/store"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

// Mail configures a mail server and the lists of recipients. A mail describes the caller and the call, and contains the
// commands to approve or deny the call. It does not contain argument values.
type Mail struct {
	// Server is the address of the SMTP server, as `HOST:PORT`.
	Server string
	// TLS is `starttls`, `tls` or `none`. With `starttls`, which is the default, STARTTLS must succeed before a mail is
	// sent. With `tls`, the connection uses TLS from its first byte. `none` is allowed only for a server on the same
	// machine.
	TLS string
	// CA is the path of a PEM file with the certificate authorities for the server. If it is empty, the system's
	// certificate authorities are used.
	CA string
	// User and Password are the sender's credentials for the mail server. Both must be set, or both must be empty.
	User     string
	Password config.Secret
	From     string
	// Lists are the lists of recipients. At least one is required.
	Lists []MailList
}

// MailList is a list of people who receive a mail when a call waits for approvers. Each address receives a separate
// mail, so that a failing address does not delay mails to the others. No mail is sent when an approval ends.
type MailList struct {
	Target
	// To contains the addresses. At least one is required.
	To []string
}

const (
	startTLS    = "starttls"
	implicitTLS = "tls"
	noTLS       = "none"
)

func (m *Mail) validate() error {
	var errs []error
	host, port, err := net.SplitHostPort(m.Server)
	if n, err2 := strconv.Atoi(port); err != nil || err2 != nil || host == "" || n < 1 || n > 65535 {
		errs = append(errs, fmt.Errorf("notices: mail: server must be `HOST:PORT`, is %q", m.Server))
	}
	switch m.TLS {
	case "", startTLS, implicitTLS:
	case noTLS:
		if !isLoopback(host) || m.Password != "" {
			errs = append(errs, errors.New("notices: mail: tls may be `none` only for a server on the same machine, and without a password"))
		}
	default:
		errs = append(errs, fmt.Errorf("notices: mail: tls must be `starttls`, `tls` or `none`, is %q", m.TLS))
	}
	if (m.User == "") != (m.Password == "") {
		errs = append(errs, errors.New("notices: mail: set both user and password, or neither"))
	}
	if _, err := netmail.ParseAddress(m.From); err != nil {
		errs = append(errs, fmt.Errorf("notices: mail: from: %q is not a mail address", m.From))
	}
	if len(m.Lists) == 0 {
		errs = append(errs, errors.New("notices: mail: at least one list is required"))
	}
	for _, l := range m.Lists {
		errs = append(errs, l.validate())
	}
	return errors.Join(errs...)
}

func (l *MailList) validate() error {
	errs := []error{l.Target.validate()}
	if len(l.To) == 0 {
		errs = append(errs, fmt.Errorf("notices: %s: at least one address is required", l.Name))
	}
	for _, to := range l.To {
		if _, err := netmail.ParseAddress(to); err != nil {
			errs = append(errs, fmt.Errorf("notices: %s: %q is not a mail address", l.Name, to))
		}
	}
	return errors.Join(errs...)
}

type recipient struct {
	*Mail
	Target
	to string
}

// recipients returns one channel for each address in each list. The name of a channel is the name of its list followed
// by a digest of the address.
func (m *Mail) recipients() (out []channelConfig) {
	for _, l := range m.Lists {
		for _, to := range l.To {
			r := &recipient{Mail: m, Target: l.Target, to: to}
			digest := sha256.Sum256([]byte(to))
			r.Name += "-" + hex.EncodeToString(digest[:4])
			out = append(out, r)
		}
	}
	return out
}

func (r *recipient) target() Target { return r.Target }

func (r *recipient) open(Deps) (Channel, error) {
	host, port, err := net.SplitHostPort(r.Server)
	if err != nil {
		return nil, err
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return nil, err
	}
	opts, err := r.options(host)
	if err != nil {
		return nil, err
	}
	opts = append(opts, mail.WithPort(number), mail.WithTimeout(sendTimeout))
	if _, err := mail.NewClient(host, opts...); err != nil {
		return nil, fmt.Errorf("set up mail: %w", err)
	}
	return &mailChannel{recipient: r, host: host, opts: opts}, nil
}

func (m *Mail) options(host string) (opts []mail.Option, err error) {
	switch m.TLS {
	case implicitTLS:
		opts = append(opts, mail.WithSSL())
	case noTLS:
		opts = append(opts, mail.WithTLSPolicy(mail.NoTLS))
	default:
		opts = append(opts, mail.WithTLSPolicy(mail.TLSMandatory))
	}
	if m.CA != "" {
		pem, err := os.ReadFile(m.CA)
		if err != nil {
			return nil, fmt.Errorf("read the CA file of the mail server: %w", err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s contains no certificate", m.CA)
		}
		opts = append(opts, mail.WithTLSConfig(&tls.Config{ServerName: host, MinVersion: tls.VersionTLS12, RootCAs: roots}))
	}
	if m.User != "" {
		opts = append(opts, mail.WithSMTPAuth(mail.SMTPAuthAutoDiscover), mail.WithUsername(m.User), mail.WithPassword(string(m.Password)))
	}
	return opts, nil
}

type mailChannel struct {
	*recipient
	host string
	opts []mail.Option
}

// Send implements Channel.
func (b *mailChannel) Send(ctx context.Context, m *Message) (string, error) {
	if m.View == nil {
		return "", ErrObsolete
	}
	msg, err := b.newMail(m)
	if err != nil {
		return "", fmt.Errorf("write a mail: %w", err)
	}
	client, err := mail.NewClient(b.host, b.opts...) // a client has only one connection, and mails are sent concurrently
	if err != nil {
		return "", fmt.Errorf("set up mail: %w", err)
	}
	if err := client.DialAndSendWithContext(ctx, msg); err != nil {
		return "", fmt.Errorf("send a mail: %w", err)
	}
	return "", nil
}

func (b *mailChannel) newMail(m *Message) (*mail.Msg, error) {
	msg := mail.NewMsg(mail.WithNoDefaultUserAgent())
	if err := errors.Join(msg.From(b.From), msg.To(b.to)); err != nil {
		return nil, err
	}
	what := fmt.Sprintf("%s, requested by %s", safetext.CallName(m.View.GetServer(), m.View.GetMethod(), m.View.GetName()), m.View.GetSubject())
	subject := "Approve? " + what
	if m.Kind == store.Escalated {
		subject = "Not decided yet: " + what
	}
	msg.Subject(subject)
	msg.SetMessageIDWithValue(m.ID + "@sluice")
	msg.SetDateWithValue(m.Due)
	msg.SetGenHeader("Auto-Submitted", "auto-generated") // RFC 3834, section 5
	msg.SetBodyString(mail.TypeTextPlain, fmt.Sprintf("A call waits for a person's decision.\n\n%s\n%s", factsText(m.View), commandsText(m.View)))
	return msg, nil
}

// factsText returns the facts of a view without argument values.
func factsText(v *approvalv1.View) string {
	v = proto.CloneOf(v)
	v.PreviousApprovalId, v.Changes, v.ChangesTotal = "", nil, 0
	return safetext.Facts(v)
}

// commandsText returns the commands with which a person can read the arguments and approve or deny the call.
func commandsText(v *approvalv1.View) string {
	return fmt.Sprintf("This shows the arguments and then asks for confirmation:\n\n  sluice approvals approve %[1]s\n  sluice approvals deny %[1]s\n", v.GetApprovalId())
}
