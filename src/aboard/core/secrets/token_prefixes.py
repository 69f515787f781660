"""How the tokens of each provider look, and where that is written: `provider=pattern`, grouped by source.

Lengths are lower bounds: of a token that a line cut, the rest is a secret, too.
"""

import re

# Runs of letters, digits, - and _. From config/gitleaks.toml of github.com/gitleaks/gitleaks:
_GITLEAKS_RUNS = rb"""
huggingface=hf_[A-Za-z0-9]{16,} huggingface=api_org_[A-Za-z0-9]{16,} github=gh[pousr]_[A-Za-z0-9]{20,}
github=github_pat_\w{20,} gitlab=gl[a-z]{2,8}-[\w-]{16,} aws=(?:AKIA|ASIA|ABIA|ACCA)[A-Za-z0-9]{12,}
alibaba=LTAI[A-Za-z0-9]{12,} google=AIza[\w-]{30,} databricks=dapi[a-f0-9]{32} slack=xox[a-z]-[A-Za-z0-9-]{10,}
slack=xapp-[A-Za-z0-9-]{16,} anthropic=sk-ant-[\w-]{16,} openai=sk-(?:proj|svcacct|admin)-[\w-]{16,}
pypi=pypi-[A-Za-z][\w-]{16,} npm=npm_[A-Za-z0-9]{24,} rubygems=rubygems_[a-f0-9]{32,} clojars=CLOJARS_[a-f0-9]{40,}
age=AGE-SECRET-KEY-\w{16,} digitalocean=do[opr]_v\d_[a-f0-9]{16,} shopify=shp[a-z]{2,3}_[a-fA-F0-9]{24,}
stripe=[srp]k_(?:live|test)_\w{10,} square=sq0[a-z]{3}-[\w-]{16,} facebook=EAA[A-Z][A-Za-z0-9]{24,}
twilio=SK[a-f0-9]{32} mailgun=key-[a-f0-9]{32} newrelic=NRAK-[A-Z0-9]{20,} postman=PMAK-[a-f0-9-]{24,}
atlassian=AT[AC]TT3[\w-]{16,} sentry=sntry[a-z]_[\w-]{16,} grafana=gls?[ac]_\w{20,} 1password=ops_eyJ[\w-]{16,}
1password=A3-[A-Z0-9]{5,6}-[A-Z0-9-]{20,} notion=ntn_[A-Za-z0-9]{20,} linear=lin_(?:api|oauth)_[A-Za-z0-9]{16,}
adobe=p8e-[A-Za-z0-9]{20,} pulumi=pul-[a-f0-9]{32,} dynatrace=dt0[a-z]\d\d[\w-]{16,}
"""
# From the providers' own documentation, or the tokens that they issue:
_PROVIDER_RUNS = rb"""
aws=(?:AROA|AIDA)[A-Za-z0-9]{12,} tencent=AKID[A-Za-z0-9]{12,} google=GOCSPX-[\w-]{16,} databricks=dose[a-f0-9]{32}
openrouter=sk-or-[\w-]{16,} nvidia=nvapi-[\w-]{20,} wandb=wandb_v\d_[\w-]{16,} kaggle=KGAT_[A-Za-z0-9]{16,}
kaggle=kgat_[A-Za-z0-9]{16,} langsmith=lsv2_[a-z]{2}_\w{20,} runpod=rpa_[A-Z0-9]{20,} nuget=oy2[a-z0-9]{43}
docker=dckr_[po]at_[\w-]{16,} stripe=whsec_\w{16,} tailscale=tskey-[\w-]{12,} supabase=sbp_[a-f0-9]{32,}
nostr=nsec1[a-z0-9]{40,} figma=figd_[\w-]{16,} hubspot=pat-[a-z]{2}\d-[a-f0-9-]{30,}
"""
# Tokens with dots, from the same two sources.
_GITLEAKS_DOTTED = rb"""
vault=hv[sbr]\.[\w-]{20,4096} sendgrid=SG\.[\w-]{16,64}\.[\w-]{16,64}
doppler=dp\.[a-z]{2,5}\.(?:[a-z0-9_]{1,20}\.)?[A-Za-z0-9]{30,64}
jwt=eyJ[\w-]{8,4096}\.[\w-]{8,4096}(?:\.[\w-]{0,4096}){0,3} terraform=[A-Za-z0-9]{14}\.atlasv1\.[\w-]{40,128}
dynatrace=dt0[a-z]\d\d\.[A-Z0-9]{24}\.[A-Z0-9]{64}
"""
_PROVIDER_DOTTED = rb"""
google=ya29\.[\w.-]{20,4096} paseto=v\d\.(?:local|public)\.[\w-]{20,4096}
discord=[MNO][\w-]{22,28}\.[\w-]{6,7}\.[\w-]{27,40}(?![\w.-])
"""


def _compile_rows(rows: bytes) -> "re.Pattern[bytes]":
    return re.compile(b"|".join(row.partition(b"=")[2] for row in rows.split()))


PREFIXED_RUN = _compile_rows(_GITLEAKS_RUNS + _PROVIDER_RUNS)
DOTTED_TOKEN = _compile_rows(_GITLEAKS_DOTTED + _PROVIDER_DOTTED)
