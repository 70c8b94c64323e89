//! The formats of the secrets of common vendors.
//!
//! Owns the table of formats. A format has a prefix or a context that no other text has: the agent gets the redacted
//! prompt, so that a false positive does damage, too. A pattern redacts its group `secret`, or the whole match if it
//! has none. Character classes and word boundaries are limited to ASCII, which keeps the search below one millisecond
//! for 100 kB of non-ASCII text.

use regex::{Captures, Regex, RegexBuilder};

/// A format of secrets and its search pattern.
pub(crate) struct TokenFormat {
    /// Every text with such a secret contains one of these.
    pub markers: &'static [&'static str],
    pattern: &'static str,
    /// Distinguishes secrets from similar texts.
    pub is_secret: fn(&Captures<'_>) -> bool,
}

impl TokenFormat {
    /// Returns whether a text may contain such a secret. A fast pre-check: most texts contain no marker at all.
    pub fn may_be_in(&self, text: &str) -> bool {
        self.markers.iter().any(|marker| text.contains(marker))
    }

    pub fn compile(&self) -> Result<Regex, regex::Error> {
        // `\b` finds no word boundary after a JSON escape (`\n` is a backslash and a letter) or after a color escape
        // sequence.
        let pattern = match self.pattern.strip_prefix(r"\b") {
            Some(rest) if !rest.contains("(?<secret>") => {
                format!(r"(?:\b|\\[bfnrt]|\\u[0-9a-f]{{4}}|\[[0-9;]*m)(?<secret>{rest})")
            }
            _ => self.pattern.to_owned(),
        };
        RegexBuilder::new(&pattern).unicode(false).build()
    }
}

const fn format(
    _vendor: &'static str,
    markers: &'static [&'static str],
    pattern: &'static str,
) -> TokenFormat {
    TokenFormat { markers, pattern, is_secret: |_| true }
}

/// A format that words and identifiers can match, too: a match must look random.
const fn random(
    _vendor: &'static str,
    markers: &'static [&'static str],
    pattern: &'static str,
) -> TokenFormat {
    TokenFormat { markers, pattern, is_secret: |found| is_random(secret(found)) }
}

/// All known formats.
pub(crate) const TOKEN_FORMATS: &[TokenFormat] = &[
    // Model vendors.
    format(
        "Anthropic, OpenAI, OpenRouter",
        &["sk-"],
        r"\bsk-(?:admin|ant|or|proj|svcacct)-[A-Za-z0-9_-]{20,}",
    ),
    random("OpenAI and others", &["sk-"], r"\bsk-[A-Za-z0-9_-]{20,}"),
    format("Google API key", &["AIza"], r"\bAIza[A-Za-z0-9_-]{35}"),
    format("Groq", &["gsk_"], r"\bgsk_[A-Za-z0-9]{40,}"),
    format("Hugging Face", &["hf_", "api_org_"], r"\b(?:hf|api_org)_[A-Za-z0-9]{30,}"),
    format("NVIDIA", &["nvapi-"], r"\bnvapi-[A-Za-z0-9_-]{40,}"),
    format("Perplexity", &["pplx-"], r"\bpplx-[A-Za-z0-9]{40,}"),
    format("Replicate", &["r8_"], r"\br8_[A-Za-z0-9]{37}"),
    format("xAI", &["xai-"], r"\bxai-[A-Za-z0-9]{60,}"),
    // Code and packages.
    format("Artifactory", &["AKCp"], r"\bAKCp[A-Za-z0-9]{60,}"),
    format("Atlassian", &["ATATT3"], r"\bATATT3[A-Za-z0-9_=-]{100,}"),
    format("Buildkite", &["bkua_"], r"\bbkua_[a-z0-9]{40}"),
    format("CircleCI", &["CCIPAT_"], r"\bCCIPAT_[A-Za-z0-9]{20,}_[a-f0-9]{40}"),
    random("crates.io", &["cio"], r"\bcio[A-Za-z0-9]{32}\b"),
    format("Docker Hub", &["dckr_"], r"\bdckr_[op]at_[A-Za-z0-9_-]{27,}"),
    format("GitHub", &["ghp_", "gho_", "ghu_", "ghs_", "ghr_"], r"\bgh[pousr]_[A-Za-z0-9]{30,}"),
    format("GitHub, fine-grained", &["github_pat_"], r"\bgithub_pat_[A-Za-z0-9_]{40,}"),
    format("GitLab", &["gl"], r"\bgl(?:agent|cbt|dt|ffct|ft|imt|oas|pat|ptt|rt|soat)-[A-Za-z0-9_.=-]{20,}"),
    format("GitLab runner", &["GR1348941"], r"\bGR1348941[A-Za-z0-9_-]{20}"),
    format("npm", &["npm_"], r"\bnpm_[A-Za-z0-9]{36}"),
    format("npm, in its settings", &["_authToken"], r"_authToken\s*=\s*(?<secret>[A-Za-z0-9_.-]{20,})"),
    format("PyPI", &["pypi-AgE"], r"\bpypi-AgE[A-Za-z0-9_-]{50,}"),
    format("RubyGems", &["rubygems_"], r"\brubygems_[a-f0-9]{48}"),
    format("SonarQube", &["sqa_", "sqp_", "squ_"], r"\bsq[apu]_[a-f0-9]{40}"),
    // Clouds.
    // AWS access key id.
    TokenFormat {
        markers: &["AKIA", "ASIA", "ABIA", "ACCA", "A3T"],
        pattern: r"\b(?:A3T[A-Z0-9]|ABIA|ACCA|AKIA|ASIA)[A-Z0-9]{16}\b",
        // AWS documents use keys with this suffix as examples.
        is_secret: |found| !secret(found).ends_with("EXAMPLE"),
    },
    // AWS secret access key.
    TokenFormat {
        markers: &["ecret", "ECRET", "aws_sec", "AWS_SEC"],
        pattern: r#"(?i)aws_?(?:secret|sec)[a-z_ -]{0,24}["']?\s{0,3}(?:=>|[:=])\s{0,3}["']?(?<secret>[A-Za-z0-9/+]{40})\b"#,
        is_secret: |found| is_random(secret(found)) && !secret(found).ends_with("EXAMPLEKEY"),
    },
    format(
        "AWS session",
        &["oken", "OKEN"],
        r#"(?i)aws_?session_?token["']?\s{0,3}[:=]\s{0,3}["']?(?<secret>[A-Za-z0-9/+=]{100,})"#,
    ),
    format("Azure storage", &["ccount", "CCOUNT"], r"(?i)\bAccountKey=(?<secret>[A-Za-z0-9+/]{86}==)"),
    format("Azure application", &["8Q~"], r"\b[A-Za-z0-9_~.]{3}8Q~[A-Za-z0-9_~.-]{34}"),
    format("Databricks", &["dapi"], r"\bdapi[a-f0-9]{32}\b"),
    format("DigitalOcean", &["_v1_"], r"\bdo[opr]_v1_[a-f0-9]{64}"),
    format("Fly.io", &["fm1_", "fm2_"], r"\bfm[12]_[A-Za-z0-9+/=_-]{100,}"),
    format("Google OAuth secret", &["GOCSPX-"], r"\bGOCSPX-[A-Za-z0-9_-]{28}"),
    format("Google OAuth access", &["ya29."], r"\bya29\.[A-Za-z0-9_-]{30,}"),
    format("Google OAuth refresh", &["1//0"], r"\b1//0[A-Za-z0-9_-]{40,}"),
    format("Heroku", &["HRKU-AA"], r"\bHRKU-AA[A-Za-z0-9_-]{50,}"),
    format("Netlify", &["nf"], r"\bnf[a-z]_[A-Za-z0-9]{36,}"),
    format("PlanetScale", &["pscale_"], r"\bpscale_(?:oauth|pw|tkn)_[A-Za-z0-9_.-]{32,}"),
    format("Pulumi", &["pul-"], r"\bpul-[a-f0-9]{40}\b"),
    format("Supabase", &["sbp_", "sb_secret_"], r"\bsb(?:p_[a-f0-9]{40}|_secret_[A-Za-z0-9_-]{20,})"),
    format("Tailscale", &["tskey-"], r"\btskey-[a-z]+-[A-Za-z0-9]{10,}-[A-Za-z0-9]{20,}"),
    format("Terraform Cloud", &[".atlasv1."], r"\b[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,}"),
    format("Vault", &["hvb.", "hvs.", "hvr."], r"\bhv[bsr]\.[A-Za-z0-9_-]{24,}"),
    random("Vault before 1.10", &["b.", "s."], r"\b[bs]\.[A-Za-z0-9]{24}\b"),
    format("Vercel", &["vc"], r"\bvc[aikpr]_[A-Za-z0-9]{24,}"),
    // Payment, mail and messages.
    format("Discord bot", &["."], r"\b[MNO][A-Za-z0-9_-]{23,25}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,38}"),
    format(
        "Discord webhook",
        &["/webhooks/"],
        r"https://(?:\w+\.)?discord(?:app)?\.com/api/webhooks/\d+/(?<secret>[A-Za-z0-9_-]{60,})",
    ),
    format("Mailchimp", &["-us"], r"\b[a-f0-9]{32}-us\d{1,2}\b"),
    format("Mailgun", &["key-"], r"\bkey-[a-f0-9]{32}\b"),
    format("SendGrid", &["SG."], r"\bSG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{32,64}"),
    format("Shopify", &["shpat_", "shpca_", "shppa_", "shpss_"], r"\bshp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}"),
    format("Slack", &["xox"], r"\bxox[a-z](?:\.xox[a-z])?-[A-Za-z0-9-]{10,}"),
    format("Slack app", &["xapp-"], r"\bxapp-\d-[A-Z0-9]+-\d+-[a-f0-9]{32,}"),
    format(
        "Slack webhook",
        &["hooks.slack"],
        r"https://hooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)/(?<secret>[A-Za-z0-9/+_-]{40,})",
    ),
    format("Square", &["sq0"], r"\bsq0(?:atp|csp)-[A-Za-z0-9_-]{22,}"),
    format("Stripe", &["k_live_", "k_prod_", "k_test_"], r"\b[rs]k_(?:live|prod|test)_[A-Za-z0-9]{10,}"),
    format("Stripe webhook", &["whsec_"], r"\bwhsec_[A-Za-z0-9+/=]{24,}"),
    format("Telegram bot", &[":AA"], r"\b\d{8,10}:AA[A-Za-z0-9_-]{33}"),
    format("Twilio", &["SK"], r"\bSK[a-f0-9]{32}\b"),
    // Tools for teams.
    format("1Password", &["ops_eyJ"], r"\bops_eyJ[A-Za-z0-9+/=_-]{100,}"),
    format("age", &["AGE-SECRET-KEY-1"], r"\bAGE-SECRET-KEY-1[0-9A-Z]{58}"),
    format("Airtable", &["pat"], r"\bpat[A-Za-z0-9]{14}\.[a-f0-9]{64}"),
    format("Doppler", &["dp."], r"\bdp\.[a-z]{2,6}\.[A-Za-z0-9]{40,}"),
    format("Dropbox", &["sl."], r"\bsl\.(?:u\.)?[A-Za-z0-9_-]{100,}"),
    format("Figma", &["fig"], r"\bfig[dor]_[A-Za-z0-9_-]{40,}"),
    format("Grafana", &["glc_", "glsa_"], r"\bgl(?:c_[A-Za-z0-9+/=]{32,}|sa_[A-Za-z0-9]{32}_[a-f0-9]{8})"),
    format("Linear", &["lin_"], r"\blin_(?:api|oauth)_[A-Za-z0-9]{32,}"),
    format("New Relic", &["NRAK-"], r"\bNRAK-[A-Z0-9]{27}"),
    format("Notion", &["ntn_", "secret_"], r"\b(?:ntn_[A-Za-z0-9]{40,}|secret_[A-Za-z0-9]{43}\b)"),
    format("Postman", &["PMAK-"], r"\bPMAK-[a-f0-9]{24}-[a-f0-9]{34}"),
    format("Sentry", &["sntry"], r"\bsntry[su]_[A-Za-z0-9+/=_-]{40,}"),
    // Not specific to a vendor.
    format("JSON web token", &["eyJ"], r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),
    format(
        "private key",
        &["PRIVATE KEY"],
        r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----(?su:.)*?-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----",
    ),
    random("Bearer", &["earer", "EARER"], r"(?i)\bbearer\s+(?<secret>[A-Za-z0-9._~+/-]{16,}=*)"),
    format("Basic", &["asic", "ASIC"], r"(?i)\bauthorization:\s*basic\s+(?<secret>[A-Za-z0-9+/]{8,}=*)"),
    // Password in a URL. A password that a person typed may contain an `@`: the last one ends it.
    TokenFormat {
        markers: &["://"],
        pattern: r#"(?i)\b[a-z][a-z0-9+.-]{1,20}://(?<user>(?u:[^\s:/@"'`<>])*):(?<secret>(?u:[^\s/"'`<>]){4,})@(?<host>\[[0-9a-f:.]+\]|[a-z0-9._-]+)"#,
        is_secret: |found| {
            let is_local = matches!(
                &found["host"],
                "localhost" | "127.0.0.1" | "[::1]" | "db" | "postgres" | "redis" | "host"
            );
            !is_local && !is_placeholder(secret(found)) && secret(found) != &found["user"]
        },
    },
];

/// Returns the part of a match to redact.
pub(crate) fn secret<'t>(found: &Captures<'t>) -> &'t str {
    found.name("secret").or_else(|| found.get(0)).map_or("", |secret| secret.as_str())
}

/// Returns whether a text is a placeholder for a password: a variable, a mask, or a word such as `your_password`.
fn is_placeholder(text: &str) -> bool {
    let is_identifier =
        text.bytes().all(|byte| byte.is_ascii_alphabetic() || matches!(byte, b'-' | b'_' | b'.'));
    let text = text.to_lowercase();
    // A `%` without two hexadecimal digits belongs to a template such as `%s` or `%(password)s`.
    let is_encoded =
        |rest: &str| rest.len() >= 2 && rest.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
    let stands_for_it = ["pass", "pwd", "secret", "token", "changeme", "..."];
    text.starts_with('$')
        || text.contains(['{', '*', '['])
        || text.contains("$(")
        || !text.split('%').skip(1).all(is_encoded)
        || (is_identifier && stands_for_it.iter().any(|word| text.contains(word)))
}

/// Returns whether a text looks random: letters and digits alternate often.
fn is_random(text: &str) -> bool {
    let is_letter = |c: u8| c.is_ascii_alphabetic();
    let changes = text.as_bytes().windows(2).filter(|two| {
        let [one, other] = [two[0], two[1]];
        (is_letter(one) && other.is_ascii_digit()) || (one.is_ascii_digit() && is_letter(other))
    });
    let mut letters = text.bytes().collect::<Vec<_>>();
    letters.sort_unstable();
    letters.dedup();
    changes.count() >= 2 && letters.len() >= 8
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::Redactor;

    fn redacted(text: &str) -> String {
        let mut text = text.to_owned();
        Redactor::usual().redact(&mut text);
        text
    }

    /// Returns letters and digits that follow no pattern and are no secret.
    fn noise(alphabet: &str, length: usize) -> String {
        let alphabet: Vec<char> = alphabet.chars().collect();
        let numbers = std::iter::successors(Some(0x2545_f491_u64), |x| {
            Some(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407))
        });
        numbers
            .skip(3)
            .take(length)
            .map(|x| alphabet[usize::try_from(x >> 33).unwrap() % alphabet.len()])
            .collect()
    }

    const WORD: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    const HEX: &str = "0123456789abcdef";

    /// Returns one token per format, built at run time so that no file contains anything that looks like a secret.
    fn tokens() -> Vec<String> {
        let (word, hex) = (|length| noise(WORD, length), |length| noise(HEX, length));
        vec![
            format!("sk-ant-{}-{}", "api03", word(80)),
            format!("sk-{}", word(48)),
            format!("AIza{}", word(35)),
            format!("gsk_{}", word(52)),
            format!("hf_{}", word(34)),
            format!("r8_{}", word(37)),
            format!("xai-{}", word(80)),
            format!("ghp_{}", word(36)),
            format!("github_pat_{}", word(82)),
            format!("glpat-{}", word(20)),
            format!("npm_{}", word(36)),
            format!("pypi-AgEIcHlwaS5vcmc{}", word(120)),
            format!("cio{}", word(32)),
            format!("dckr_pat_{}", word(27)),
            format!("AKIA{}", noise("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", 16)),
            format!("dapi{}", hex(32)),
            format!("dop_v1_{}", hex(64)),
            format!("ya29.{}", word(120)),
            format!("hvs.{}", word(90)),
            format!("s.{}", word(24)),
            format!("sbp_{}", hex(40)),
            format!("{}.atlasv1.{}", word(14), word(67)),
            format!("SG.{}.{}", word(22), word(43)),
            format!("xoxb-{}-{}", noise("0123456789", 12), word(24)),
            format!("sk_live_{}", word(24)),
            format!("whsec_{}", word(32)),
            format!("{}:AA{}", noise("123456789", 10), word(33)),
            format!("SK{}", hex(32)),
            format!("key-{}", hex(32)),
            format!("lin_api_{}", word(40)),
            format!("AGE-SECRET-KEY-1{}", noise("023456789ACDEFGHJKLMNPQRSTUVWXYZ", 58)),
            format!("eyJ{}.eyJ{}.{}", word(20), word(40), word(43)),
            format!("-----BEGIN {key}-----\n{}\n-----END {key}-----", word(64), key = "OPENSSH PRIVATE KEY"),
        ]
    }

    #[test]
    fn known_tokens_are_redacted_completely() {
        for token in tokens() {
            for (before, after) in [
                ("a ", " b"),
                ("KEY=\"", "\"\n"),
                ("('", "')"),
                ("", ""),
                (r"a\n", r"\nb"),
                (r"\t", ""),
                ("\x1b[31m", "\x1b[0m"),
                (r"\u001b[1;31m", r"\u001b[0m"),
                (r"KEY\u003d", ""),
            ] {
                let text = format!("{before}{token}{after}");
                assert_eq!(redacted(&text), format!("{before}[redacted]{after}"), "{token}");
            }
        }
    }

    #[test]
    fn secrets_are_redacted_by_context() {
        let word = noise(WORD, 40);
        for (text, secret) in [
            (format!("Authorization: Bearer {word}"), word.as_str()),
            (format!("aws_secret_access_key = {word}"), &word),
            (format!("\"AWS_SECRET_ACCESS_KEY\": \"{word}\""), &word),
            (format!("AccountKey={word}{word}{}==", &word[..6]), &format!("{word}{word}{}==", &word[..6])),
            (format!("postgres://shop:{}@db.shop.io/main", &word[..8]), &word[..8]),
            (format!("https://ana:{}@git.shop.io/x.git", &word[..8]), &word[..8]),
            (format!("x HTTPS://ana:{}@db.example.com:5432/x end", &word[..4]), &word[..4]),
            (format!("https://hooks.slack.com/services/T0{word}"), &format!("T0{word}")),
        ] {
            assert_eq!(redacted(&text), text.replace(secret, "[redacted]"));
        }
    }

    #[test]
    fn url_passwords_are_redacted() {
        for (before, password, after) in [
            ("redis://:", "hunter2secret", "@example.com"),
            ("x mysql://root:", "Password1", "@10.0.0.7/x y"),
            ("amqp://a:", "p%40s%2Fs", "@mq.shop.io, b@c.io"),
            ("HTTPS://a:", "x:y@z!1", "@[2001:db8::7]:5432"),
            (r#"{"url":"https://bob:"#, "pw12", r#"@shop.io/r.git"}"#),
        ] {
            let text = [before, password, after].concat();
            assert_eq!(redacted(&text), [before, "[redacted]", after].concat(), "{text}");
        }
    }

    #[test]
    fn harmless_texts_are_not_redacted() {
        for harmless in [
            "task-force-of-many-people-in-twenty-offices, risk-averse, sk-short, 01a1dde2-642d-7027-95b7-67d9f29d1836",
            "<div class=\"sk-folding-cube-animation-wrapper\">",
            "bearer of bad news; Bearer authentication-is-required; Authorization: Bearer $TOKEN_OF_THE_USER_HERE",
            "postgres://postgres:postgres@localhost:5432/app, redis://default:secret123@127.0.0.1, mysql://root:password@db.io",
            "https://example.com:8080/a@b, ssh://git@github.com:22/x, http://user:your-password@example.com",
            "https://bob:$PW@shop.io ftp://u:%s@shop.io ftp://u:%(pw)s@shop.io http://u:${PW}@shop.io http://u:****@shop.io http://u:...@x.io",
            "AKIAIOSFODNN7EXAMPLE wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY s.querySelectorAllElements s.map(x)",
            "da39a3ee5e6b4b0d3255bfef95601890afd80709 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "npm_config_registry npm_lifecycle_event hf_hub_download do_v1_something glpat-short",
        ] {
            assert_eq!(redacted(harmless), harmless);
        }
    }

    /// Searches realistic text: the files of this project.
    #[test]
    fn project_files_contain_no_secrets() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let (mut read, mut found) = (0, Vec::new());
        let mut open = vec![root.join("crates"), root.join("docs"), root.join("support")];
        while let Some(path) = open.pop() {
            if path.is_dir() {
                open.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            } else if let Ok(text) = std::fs::read_to_string(&path) {
                read += text.len();
                let is_changed = redacted(&text) != text;
                let lines = text.lines().filter(|line| is_changed && redacted(line) != *line);
                found.extend(lines.map(|line| format!("{}: {line}", path.display())));
            }
        }
        assert!(read > 1_000_000, "{read} bytes are too few to measure anything");
        // The header of a test.
        found.retain(|line| !line.contains("Bearer 0123456789abcdef"));
        assert!(found.is_empty(), "{found:#?}");
    }
}
