package config

// Notify configures the channels that notify people about approvals. The zero value has no channels.
type Notify struct {
	// Desktop shows a notice on the desktop of the user of `sluice up` when calls wait for approval. Empty means `true`
	// for the mesh of `sluice init`, and `false` otherwise.
	Desktop *bool `yaml:"desktop"`
	// Webhooks are addresses that receive signed requests.
	Webhooks []Webhook `yaml:"webhooks"`
	// Mail sends mails to people.
	Mail *Mail `yaml:"mail"`
	// Slack asks people in a Slack channel.
	Slack *Slack `yaml:"slack"`
}

// Webhook is an address that receives signed requests.
type Webhook struct {
	// Name identifies the channel: unique, 1 to 32 lower-case letters, digits or `-`. Required.
	Name string `yaml:"name"`
	// Tenant limits the channel to one tenant. Empty means all tenants.
	Tenant string `yaml:"tenant"`
	// After is the fraction of the time to decide, below 1, after which the channel is notified of pending approvals. With
	// `0`, it is notified immediately.
	After float64 `yaml:"after"`
	// URL is the address: https, or http on this machine. Required.
	URL string `yaml:"url"`
	// Secret is the key that signs the requests: `whsec_` and 24 to 64 bytes in base64. Required.
	Secret Secret `yaml:"secret"`
}

// Mail configures the server that sends mails, and the lists of people who receive them.
type Mail struct {
	// Server is the mail server as `HOST:PORT`. Required.
	Server string `yaml:"server"`
	// TLS is `starttls`, `tls`, or `none` for a server on this machine without a password. Empty means `starttls`.
	TLS string `yaml:"tls"`
	// CA is a PEM file of certificates to trust. Empty means the system's certificates.
	CA string `yaml:"ca"`
	// User is the sender's account. Set both `user` and `password`, or neither of them.
	User string `yaml:"user"`
	// Password is the account's password.
	Password Secret `yaml:"password"`
	// From is the sender's address. Required.
	From string `yaml:"from"`
	// Lists are the lists of people who receive mails. Required.
	Lists []MailList `yaml:"lists"`
}

// MailList is a channel that sends email to a list of addresses.
type MailList struct {
	// Name identifies the channel, as for a webhook. Required.
	Name string `yaml:"name"`
	// Tenant limits the channel to one tenant. Empty means all tenants.
	Tenant string `yaml:"tenant"`
	// After delays notices, as for a webhook.
	After float64 `yaml:"after"`
	// To lists the addresses. Required.
	To []string `yaml:"to"`
}

// Slack configures a channel in Slack. Sluice uses Socket Mode to ask people in this channel.
type Slack struct {
	// Name identifies the channel, as for a webhook. Required.
	Name string `yaml:"name"`
	// Tenant is the tenant in which people vote. Required.
	Tenant string `yaml:"tenant"`
	// AppToken is the app-level token, `xapp-…`. Required.
	AppToken Secret `yaml:"app_token"`
	// BotToken is the bot's token, `xoxb-…`. Required.
	BotToken Secret `yaml:"bot_token"`
	// Channel is the id of the channel in Slack. Required.
	Channel string `yaml:"channel"`
	// People maps the ids of Slack users to the users' subjects.
	People map[string]string `yaml:"people"`
}
